package podconfig

import (
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/source/manifest/manifesttest"
)

// rewrite deletes the file and writes it again at once.
func rewrite(t testing.TB, path, content string) {
	t.Helper()
	remove(t, path)
	write(t, path, content)
}

func TestManifestThatIsDeletedAndWrittenAgain(t *testing.T) {
	again := "REMOVE default/a; ADD default/a"
	tests := []struct {
		name string
		// roots are the paths below the folder that the source is given; nil means the folder
		// itself.
		roots []string
		// act is what happens within the quiet time to a.yaml, which has the content given.
		act  func(b *bench, path, content string)
		want string
	}{
		{name: "in a folder", want: again, act: func(b *bench, path, content string) {
			rewrite(b.t, path, content)
			b.watcher.deleted(path)
			b.watcher.touch(path)
		}},
		{name: "as a path of its own", roots: []string{"a.yaml"}, want: again, act: func(b *bench, path, content string) {
			rewrite(b.t, path, content)
			b.watcher.deleted(path)
			b.watcher.touch(path)
		}},
		{name: "in a folder that is also given by its file", roots: []string{"", "a.yaml"}, want: again, act: func(b *bench, path, content string) {
			rewrite(b.t, path, content)
			b.watcher.deleted(path)
			b.watcher.touch(path)
		}},
		{name: "several times", want: again, act: func(b *bench, path, content string) {
			for range 3 {
				rewrite(b.t, path, content)
				b.watcher.deleted(path)
				b.watcher.touch(path)
			}
		}},
		{name: "with another content", want: again, act: func(b *bench, path, _ string) {
			rewrite(b.t, path, manifesttest.Pod("a", "i2"))
			b.watcher.deleted(path)
			b.watcher.touch(path)
		}},
		{name: "and turned bad", want: "REMOVE default/a", act: func(b *bench, path, _ string) {
			rewrite(b.t, path, "kind: [")
			b.watcher.deleted(path)
			b.watcher.touch(path)
		}},
		{name: "replaced by a rename", want: "", act: func(b *bench, path, content string) {
			replace(b.t, path, content)
			b.watcher.touch(path)
		}},
		{name: "a file of an editor beside it is deleted", want: "", act: func(b *bench, path, _ string) {
			b.watcher.deleted(path + "~")
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, tt.roots, nil, func(b *bench) {
				path, content := b.path("a.yaml"), manifesttest.Pod("a", "i1")
				write(t, path, content)
				b.expect("ADD default/a")
				tt.act(b, path, content)
				b.expect(tt.want)
				b.expect("")
			})
		})
	}
}

// The events may come when a look at everything has seen the new file already.
func TestRewrittenManifestWhoseEventsAreLate(t *testing.T) {
	inBubble(t, nil, nil, func(b *bench) {
		path, content := b.path("a.yaml"), manifesttest.Pod("a", "i1")
		write(t, path, content)
		b.expect("ADD default/a")
		rewrite(t, path, content)
		time.Sleep(defaultRescan)
		synctest.Wait()
		b.expect("")
		b.watcher.deleted(path)
		b.watcher.touch(path)
		b.expect("REMOVE default/a; ADD default/a")
		b.expect("")
	})
}

func TestRewrittenManifestIsExplained(t *testing.T) {
	inBubble(t, nil, nil, func(b *bench) {
		path := b.path("a.yaml")
		write(t, path, manifesttest.Pod("a", "i1"))
		b.expect("ADD default/a")
		rewrite(t, path, manifesttest.Pod("a", "i1"))
		b.watcher.deleted(path)
		b.watcher.touch(path)
		b.expect("REMOVE default/a; ADD default/a")
		entries := b.journal.Read("default", "a")
		var got []string
		for _, e := range entries[len(entries)-2:] {
			got = append(got, e.Decision+": "+e.Why)
		}
		want := "manifest " + path + " was deleted and written again"
		if got[0] != "removed: "+want || got[1] != "accepted: "+want {
			t.Errorf("the journal says %q", got)
		}
	})
}

// A pod that was missing from one set is removed and added, also when the loop takes nothing in
// between.
func TestPodThatWasMissingBetweenTwoTakes(t *testing.T) {
	c, err := New(newConfig(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	f := c.feeds[0]
	a, b := testPod("1", "a"), testPod("2", "b")
	steps := []struct {
		sets [][]*v1.Pod
		want string
	}{
		{sets: [][]*v1.Pod{{a, b}}, want: "ADD default/a default/b"},
		{sets: [][]*v1.Pod{{b}, {a, b}}, want: "REMOVE default/a; ADD default/a"},
		{sets: [][]*v1.Pod{{b}, {testPod("1", "a"), b}}, want: "REMOVE default/a; ADD default/a"},
		{sets: [][]*v1.Pod{{}, {a}, {a, b}}, want: "REMOVE default/a default/b; ADD default/a default/b"},
		{sets: [][]*v1.Pod{{a, b}}, want: ""},
		{sets: [][]*v1.Pod{{testPod("1", "a"), b}}, want: ""},
		{sets: [][]*v1.Pod{{a, b, testPod("3", "c")}, {a, b}}, want: ""}, // the loop never had it
	}
	for i, s := range steps {
		for _, pods := range s.sets {
			c.handOver(f, snapshot{pods: pods})
		}
		if got := ops(c.Take()); got != s.want {
			t.Errorf("step %d: got %q, want %q", i, got, s.want)
		}
	}
	if !c.SeenAllSources() || f.source != pod.FileSource {
		t.Error("the source does not count as seen")
	}
}

// The kernel's own events of a file that is deleted and written again within a moment lead to a
// removal and an addition, each time.
func TestInotifyRewritten(t *testing.T) {
	dir := t.TempDir()
	path, content := dir+"/a.yaml", manifesttest.Pod("a", "i1")
	write(t, path, content)
	l := startLive(t, dir)
	l.expect(map[string]string{"a": "i1"})
	for range 20 {
		rewrite(t, path, content)
		for removed, added := 0, 0; removed == 0 || added == 0; {
			select {
			case <-l.Wake():
			case <-l.ctx.Done():
				t.Fatal("the manifest was deleted and written again, and nothing came of it")
			}
			for _, u := range l.Take() {
				switch u.Op {
				case pod.REMOVE:
					removed++
				case pod.ADD:
					added++
				}
			}
		}
	}
}

package podconfig

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/checkpoint"
	"berth/internal/checkpoint/checkpointtest"
	"berth/internal/pod"
	"berth/internal/source/manifest"
	"berth/internal/source/manifest/manifesttest"
)

// records returns the names of the files in the source's part of the state folder, with their
// contents.
func records(t *testing.T, state string, source pod.Source) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(state, string(source)))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, e := range entries {
		path := filepath.Join(state, string(source), e.Name())
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, %v", e.Name(), fi.Mode(), err)
		}
		out[e.Name()] = string(b)
	}
	return out
}

// onlyRecord returns the path of the only record.
func onlyRecord(t *testing.T, state string, source pod.Source) string {
	t.Helper()
	all := records(t, state, source)
	if len(all) != 1 {
		t.Fatalf("%d records: %v", len(all), all)
	}
	for name := range all {
		return filepath.Join(state, string(source), name)
	}
	return ""
}

func uids(r *running) map[string]pod.UID {
	out := map[string]pod.UID{}
	for name, p := range r.pods() {
		out[name] = p.UID
	}
	return out
}

func TestAFileThatIsBadWhenTheAgentStartsKeepsItsPods(t *testing.T) {
	two := manifesttest.Pod("a", "i") + "---\n" + manifesttest.Pod("b", "i")
	const stays = "; until this is mended the last good version stays: default/a, default/b"
	for name, tt := range map[string]struct {
		before  []string // contents while the first agent runs
		away    func(t *testing.T, path string)
		problem string
	}{
		"broken": {
			[]string{two},
			func(t *testing.T, path string) { write(t, path, "}") },
			"a.yaml error: invalid YAML: did not find expected node content" + stays,
		},
		"emptied": {
			[]string{two},
			func(t *testing.T, path string) { write(t, path, "") },
			"a.yaml error: is empty: a manifest needs apiVersion, kind, metadata and spec" + stays,
		},
		"unreadable": {
			[]string{two},
			func(t *testing.T, path string) {
				if err := os.Truncate(path, maxManifest+1); err != nil {
					t.Fatal(err)
				}
			},
			"a.yaml error: cannot be read: larger than the limit of 10485760 bytes for a manifest" + stays,
		},
		"bad already, in part and with a newer part": {
			[]string{two, manifesttest.Pod("a", "j") + "---\n" + manifesttest.Pod("b", `""`)},
			func(*testing.T, string) {},
			"a.yaml error: spec.containers[0].image: Required value; until this is mended the last good version stays: default/b",
		},
		"good": {[]string{two}, func(*testing.T, string) {}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir, state := t.TempDir(), filepath.Join(t.TempDir(), "manifests")
			path := filepath.Join(dir, "a.yaml")
			cfg := newConfig(dir)
			cfg.StateDir = state
			var before map[string]pod.UID
			synctest.Test(t, func(t *testing.T) {
				r := startRunning(t, cfg)
				for _, content := range tt.before {
					write(t, path, content)
					time.Sleep(defaultRescan)
					synctest.Wait()
					r.Take()
				}
				before = uids(r)
			})
			if len(before) != 2 {
				t.Fatalf("before: %v", before)
			}
			tt.away(t, path)
			for range 2 { // an agent that starts with a bad file keeps its last good version for the next one
				synctest.Test(t, func(t *testing.T) {
					r := startRunning(t, cfg)
					time.Sleep(patience)
					synctest.Wait()
					r.Take()
					if diff := cmp.Diff(before, uids(r)); diff != "" {
						t.Errorf("pods after the start (-before +after):\n%s", diff)
					}
					r.expectSeen(true)
					r.expectProblems(tt.problem)
					r.after(3*defaultRescan, "")
				})
			}
			remove(t, path)
			synctest.Test(t, func(t *testing.T) {
				r := startRunning(t, cfg)
				r.after(patience, "ADD")
				r.expectProblems("")
				time.Sleep(keptDelay)
				synctest.Wait()
				if left := records(t, state, pod.FileSource); len(left) > 0 {
					t.Errorf("the record of a removed file stays: %v", left)
				}
			})
		})
	}
}

func TestKeptRecords(t *testing.T) {
	dir, state := t.TempDir(), filepath.Join(t.TempDir(), "manifests")
	path := filepath.Join(dir, "a.yaml")
	cfg := newConfig(dir)
	cfg.StateDir = state
	var record string
	var written os.FileInfo
	stat := func(t *testing.T) os.FileInfo {
		t.Helper()
		fi, err := os.Stat(record)
		if err != nil {
			t.Fatal(err)
		}
		return fi
	}
	synctest.Test(t, func(t *testing.T) {
		write(t, path, manifesttest.Pod("a", "i"))
		r := startRunning(t, cfg)
		r.after(patience, "ADD default/a")
		if got := records(t, state, pod.FileSource); len(got) > 0 {
			t.Errorf("written on the pod's road: %v", got)
		}
		r.after(keptDelay, "")
		record = onlyRecord(t, state, pod.FileSource)
		written = stat(t)
		var got map[string]any
		b, err := os.ReadFile(record)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatal(err)
		}
		want := map[string]any{
			"version": 1.0, "source": "file", "path": path,
			"documents": []any{map[string]any{
				"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "a"},
				"spec": map[string]any{"containers": []any{map[string]any{"name": "c", "image": "i"}}},
			}},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("record (-want +got):\n%s", diff)
		}
		write(t, path, "# changed\n"+manifesttest.Pod("a", "i"))
		r.after(2*defaultRescan, "")
	})
	synctest.Test(t, func(t *testing.T) {
		r := startRunning(t, cfg)
		r.after(2*defaultRescan, "ADD default/a")
		if now := stat(t); !os.SameFile(now, written) || !now.ModTime().Equal(written.ModTime()) {
			t.Error("a record was written again although nothing has changed")
		}
		write(t, path, manifesttest.Pod("a", "j"))
		r.after(defaultRescan+patience, "REMOVE default/a; ADD default/a")
		r.stop()
		if now := onlyRecord(t, state, pod.FileSource); now == record {
			t.Error("an agent that ends does not write what is pending")
		}
		remove(t, path)
	})
	synctest.Test(t, func(t *testing.T) { // goes and comes back before anything is written
		r := startRunning(t, cfg)
		r.after(patience, "ADD")
		write(t, path, "}")
		r.after(0, "")
		r.stop()
		if got := records(t, state, pod.FileSource); len(got) > 0 {
			t.Errorf("left: %v", got)
		}
	})
}

func TestKeptRecordThatCannotBeUsed(t *testing.T) {
	for name, tt := range map[string]struct{ content, reason string }{
		"cut":             {`{"version":1,`, "invalid JSON: unexpected end of JSON input"},
		"empty":           {"", "invalid JSON: unexpected end of JSON input"},
		"newer":           {`{"version":2,"source":"file"}`, "it has version 2 of the form, and this program knows version 1"},
		"of another file": {`{"version":1,"source":"file","path":"/other"}`, "it is of another manifest: /other"},
		"not valid now":   {`{"version":1,"source":"file","path":"$PATH","documents":[{"apiVersion":"v1","kind":"Pod"}]}`, "document 1 is refused now: "},
		"no object":       {`{"version":1,"source":"file","path":"$PATH","documents":[[]]}`, "document 1: "},
	} {
		t.Run(name, func(t *testing.T) {
			dir, state := t.TempDir(), t.TempDir()
			path := filepath.Join(dir, "a.yaml")
			cfg := newConfig(dir)
			cfg.StateDir = state
			write(t, path, manifesttest.Pod("a", "i"))
			synctest.Test(t, func(t *testing.T) {
				startRunning(t, cfg).after(patience, "ADD default/a")
			})
			record := onlyRecord(t, state, pod.FileSource)
			write(t, record, strings.ReplaceAll(tt.content, "$PATH", path))
			write(t, path, "}")
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
				r := startRunning(t, cfg)
				r.after(patience, "ADD")
				problems := r.Problems()
				if len(problems) != 2 || problems[0].Severity != manifest.SeverityWarning || !strings.HasPrefix(problems[0].Message,
					"the version kept of it is lost: "+record+" cannot be used: "+tt.reason) || strings.Contains(problems[0].Message, "\n") {
					t.Errorf("problems:\n%s", messages(problems))
				}
				if now := onlyRecord(t, state, pod.FileSource); now != record+checkpoint.AsideSuffix {
					t.Errorf("not set aside: %s", now)
				}
				write(t, path, manifesttest.Pod("b", "i"))
				r.after(defaultRescan+patience, "ADD default/b")
				r.expectProblems("")
				r.stop()
				if now := onlyRecord(t, state, pod.FileSource); checkpoint.IsAside(now) {
					t.Errorf("no new record: %s", now)
				}
				if !strings.Contains(log.String(), "cannot restore a manifest") {
					t.Errorf("log: %s", log.String())
				}
			})
		})
	}
}

func TestKeptTwice(t *testing.T) {
	dir, state := t.TempDir(), t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	cfg := newConfig(dir)
	cfg.StateDir = state
	run := func(want string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) { startRunning(t, cfg).after(patience, want) })
	}
	write(t, path, manifesttest.Pod("a", "old"))
	run("ADD default/a")
	old := onlyRecord(t, state, pod.FileSource)
	content, err := os.ReadFile(old)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, manifesttest.Pod("a", "new"))
	run("ADD default/a")
	// As if the agent had been killed before it could remove the older one.
	if err := errors.Join(os.WriteFile(old, content, 0o600), os.Chtimes(old, time.Unix(1, 0), time.Unix(1, 0))); err != nil {
		t.Fatal(err)
	}
	write(t, path, "}")
	synctest.Test(t, func(t *testing.T) {
		r := startRunning(t, cfg)
		r.after(patience, "ADD default/a")
		if got := r.pods()["a"].Spec.Containers[0].Image; got != "new" {
			t.Errorf("image %q", got)
		}
	})
	if now := onlyRecord(t, state, pod.FileSource); now == old {
		t.Error("the newer one was removed")
	}
}

func TestKeepingFails(t *testing.T) {
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "file")
	write(t, file, "")
	synctest.Test(t, func(t *testing.T) {
		var log lockedBuffer
		cfg := newConfig(dir)
		cfg.StateDir = filepath.Join(file, "manifests")
		cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		write(t, filepath.Join(dir, "a.yaml"), manifesttest.Pod("a", "i"))
		r := startRunning(t, cfg)
		r.after(patience, "ADD default/a")
		r.after(time.Hour, "")
		if n := strings.Count(log.String(), "not saved"); n != 1 {
			t.Errorf("said %d times:\n%s", n, log.String())
		}
		remove(t, file)
		r.after(10*time.Second+keptDelay, "")
		onlyRecord(t, cfg.StateDir, pod.FileSource)
	})
}

// What was kept stays until it can be replaced.
func TestDiskThatTakesNoRecords(t *testing.T) {
	checkpointtest.Each(t, func(t *testing.T, fail func(string) func()) {
		dir, state := t.TempDir(), filepath.Join(t.TempDir(), "manifests")
		path := filepath.Join(dir, "a.yaml")
		synctest.Test(t, func(t *testing.T) {
			cfg := newConfig(dir)
			cfg.StateDir = state
			write(t, path, manifesttest.Pod("a", "i"))
			r := startRunning(t, cfg)
			r.after(patience, "ADD default/a")
			r.after(2*keptDelay, "")
			before := onlyRecord(t, state, pod.FileSource)
			mend := fail(state)
			write(t, path, manifesttest.Pod("a", "j"))
			r.after(defaultRescan+patience, "REMOVE default/a; ADD default/a")
			r.after(time.Minute, "")
			if now := onlyRecord(t, state, pod.FileSource); now != before || r.Health() == nil {
				t.Errorf("kept %s, had %s, health %v", now, before, r.Health())
			}
			mend()
			r.after(11*time.Second, "")
			if now := onlyRecord(t, state, pod.FileSource); now == before || r.Health() != nil {
				t.Errorf("kept %s, health %v", now, r.Health())
			}
		})
	})
}

// Records that an earlier version set aside count as set aside, and what a killed agent left is no
// record.
func TestRecordsOfEarlierAgents(t *testing.T) {
	dir, state := t.TempDir(), t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	cfg := newConfig(dir)
	cfg.StateDir = state
	write(t, path, manifesttest.Pod("a", "i"))
	synctest.Test(t, func(t *testing.T) { startRunning(t, cfg).after(patience, "ADD default/a") })
	record := onlyRecord(t, state, pod.FileSource)
	aside := record + ".unusable"
	if err := os.Rename(record, aside); err != nil {
		t.Fatal(err)
	}
	write(t, aside, "{")
	write(t, filepath.Join(filepath.Dir(record), "."+filepath.Base(record)+".tmp"), "{")
	write(t, path, "}")
	synctest.Test(t, func(t *testing.T) {
		r := startRunning(t, cfg)
		r.after(patience, "ADD")
		if now := onlyRecord(t, state, pod.FileSource); now != aside {
			t.Errorf("set aside again: %s", now)
		}
		write(t, path, manifesttest.Pod("b", "i"))
		r.after(defaultRescan+patience, "ADD default/b")
		r.after(2*keptDelay, "")
		if now := onlyRecord(t, state, pod.FileSource); checkpoint.IsAside(now) {
			t.Errorf("no new record: %s", now)
		}
	})
}

// TestHTTPServerThatIsDeadWhenTheAgentStarts: pods of the last answer go on, and the source does
// not hold up the agent for ever.
func TestHTTPServerThatIsDeadWhenTheAgentStarts(t *testing.T) {
	state := t.TempDir()
	dead := breakWith(errors.New("no luck"))
	const noLuck = "pods.yaml error: cannot be read: no luck"
	start := func(name string, answer func(*http.Request) (*http.Response, error), story func(t *testing.T, r *running, w *fakeWeb)) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &fakeWeb{answer: answer}
				cfg := webConfig(w)
				cfg.StateDir = state
				story(t, startRunning(t, cfg), w)
			})
		})
	}
	var before map[string]pod.UID
	start("never answered", dead, func(t *testing.T, r *running, w *fakeWeb) {
		r.after(0, "ADD")
		r.expectSeen(true)
		r.expectProblems(noLuck)
		w.say(respond(200, podList("a", "b")))
		r.after(defaultPoll, "ADD default/a default/b")
		before = uids(r)
	})
	start("dead", dead, func(t *testing.T, r *running, w *fakeWeb) {
		r.after(0, "ADD default/a default/b")
		r.expectSeen(true)
		r.expectProblems(noLuck + "; until this is mended the last good version stays: default/a, default/b")
		if diff := cmp.Diff(before, uids(r)); diff != "" {
			t.Errorf("identity (-before +after):\n%s", diff)
		}
		w.say(respond(200, podList("a", "c")))
		r.after(defaultPoll, "REMOVE default/b; ADD default/c")
		r.expectProblems("")
	})
	start("slow", hang, func(t *testing.T, r *running, _ *fakeWeb) {
		r.after(requestTimeout-1, "")
		r.expectSeen(false)
		r.after(1, "ADD default/a default/c")
		r.expectSeen(true)
	})
	start("bad answer", respond(200, ""), func(t *testing.T, r *running, _ *fakeWeb) {
		r.after(0, "ADD default/a default/c")
		r.expectSeen(true)
	})
	start("the pods went while the agent was away", respond(200, podList()), func(t *testing.T, r *running, _ *fakeWeb) {
		r.after(0, "ADD")
		r.expectSeen(true)
		r.stop()
		if left := records(t, state, pod.HTTPSource); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	})
	start("pods again", respond(200, podList("a")), func(t *testing.T, r *running, _ *fakeWeb) { r.after(0, "ADD default/a") })
	start("unusable record", func(*http.Request) (*http.Response, error) {
		return nil, errors.New("no luck")
	}, func(t *testing.T, r *running, w *fakeWeb) {
		r.stop() // it had no chance to read anything yet, or has read a good one: both leave the record
		record := onlyRecord(t, state, pod.HTTPSource)
		write(t, record, "{")
		for range 2 { // the second agent finds it set aside
			cfg := webConfig(w)
			cfg.StateDir = state
			again := startRunning(t, cfg)
			again.after(time.Hour, "")
			again.expectSeen(false)
			if got := messages(again.Problems()); !strings.Contains(got, "the version kept of it is lost: "+record) {
				t.Errorf("problems: %s", got)
			}
			again.stop()
		}
		w.say(respond(200, podList("a")))
		cfg := webConfig(w)
		cfg.StateDir = state
		mended := startRunning(t, cfg)
		mended.after(0, "ADD default/a")
		mended.expectSeen(true)
	})
	t.Run("another URL", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := &fakeWeb{answer: dead}
			cfg := webConfig(w)
			cfg.Paths = []string{"https://example.com/moved.yaml"}
			cfg.StateDir = state
			r := startRunning(t, cfg)
			r.after(time.Hour, "")
			r.expectSeen(false) // pods of the old URL may be running
			w.say(respond(200, podList("a")))
			r.after(defaultPoll, "ADD default/a")
			r.expectSeen(true)
			r.stop()
			b, err := os.ReadFile(onlyRecord(t, state, pod.HTTPSource))
			if err != nil || !strings.Contains(string(b), "moved.yaml") {
				t.Errorf("record %s, %v", b, err)
			}
		})
	})
}

func TestThousandsOfRecords(t *testing.T) {
	const n = 1000
	dir, state := t.TempDir(), t.TempDir()
	cfg := newConfig(dir)
	cfg.StateDir = state
	for i := range n {
		write(t, filepath.Join(dir, fmt.Sprintf("%04d.yaml", i)), manifesttest.Pod(fmt.Sprintf("p%d", i), "i"))
	}
	run := func(change func()) {
		synctest.Test(t, func(t *testing.T) {
			startRunning(t, cfg)
			time.Sleep(2 * keptDelay)
			synctest.Wait()
			change()
			time.Sleep(2 * defaultRescan)
			synctest.Wait()
		})
	}
	run(func() {})
	before := records(t, state, pod.FileSource)
	run(func() {
		write(t, filepath.Join(dir, "0007.yaml"), manifesttest.Pod("p7", "j"))
		remove(t, filepath.Join(dir, "0008.yaml"))
	})
	came, went := 0, 0
	after := records(t, state, pod.FileSource)
	for name := range after {
		if _, ok := before[name]; !ok {
			came++
		}
	}
	for name := range before {
		if _, ok := after[name]; !ok {
			went++
		}
	}
	if len(before) != n || came != 1 || went != 2 {
		t.Errorf("%d records; then %d came and %d went", len(before), came, went)
	}
}

package podconfig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"berth/internal/host/inotify"
	"berth/internal/pod"
	"berth/internal/record/events/messagestest"
	"berth/internal/source/manifest"
	"berth/internal/source/manifest/manifesttest"
)

// fakeWatcher is a Watcher whose events the test sends. It refuses folders that do not exist.
type fakeWatcher struct {
	events chan inotify.Event

	mu      sync.Mutex
	folders map[string]bool // guarded by mu
	closed  bool            // guarded by mu
}

func newFakeWatcher() *fakeWatcher {
	return &fakeWatcher{events: make(chan inotify.Event), folders: map[string]bool{}}
}

func (w *fakeWatcher) isClosed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.closed
}

func (w *fakeWatcher) Add(folder string) error {
	if _, err := os.Stat(folder); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.folders[folder] = true
	return nil
}

func (w *fakeWatcher) Remove(folder string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.folders, folder)
	return nil
}

func (w *fakeWatcher) Events() <-chan inotify.Event { return w.events }

func (w *fakeWatcher) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	return nil
}

func (w *fakeWatcher) watches(folder string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.folders[folder]
}

// touch reports events of the paths.
func (w *fakeWatcher) touch(paths ...string) {
	for _, p := range paths {
		w.events <- inotify.Event{Path: p}
	}
}

// deleted reports that entries were deleted, whatever is there now.
func (w *fakeWatcher) deleted(paths ...string) {
	for _, p := range paths {
		w.events <- inotify.Event{Path: p, Deleted: true}
	}
}

// bench is a running PodConfig in a bubble, over a real folder and a fake watcher.
type bench struct {
	*PodConfig
	t       *testing.T
	dir     string
	watcher *fakeWatcher
	decodes sync.Map     // how often each path was decoded: path to *atomic.Int64
	hands   atomic.Int64 // how often a set was handed over
	start   func()       // the first settle does it, so that files can be laid out before
	done    chan error
}

// inBubble runs a PodConfig over the paths below a new folder (the folder itself without any) until
// the test's function returns.
func inBubble(t *testing.T, paths []string, change func(*Config), test func(*bench)) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	inBubbleAt(t, dir, paths, change, test)
}

func inBubbleAt(t *testing.T, dir string, paths []string, change func(*Config), test func(*bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newFakeWatcher()
		cfg := newConfig(dir)
		if paths != nil {
			cfg.Paths = nil
			for _, p := range paths {
				cfg.Paths = append(cfg.Paths, filepath.Join(dir, p))
			}
		}
		cfg.Watch = func() (Watcher, error) { return w, nil }
		if change != nil {
			change(&cfg)
		}
		c, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		b := &bench{PodConfig: c, t: t, dir: dir, watcher: w, done: make(chan error, 1)}
		files, err := newFileSource(cfg, cfg.Paths)
		if err != nil {
			t.Fatal(err)
		}
		files.rescan = defaultRescan
		decode := files.decode
		files.decode = func(from manifest.Origin, content []byte) manifest.Decoded {
			n, _ := b.decodes.LoadOrStore(from.Path, new(atomic.Int64))
			n.(*atomic.Int64).Add(1)
			return decode(from, content)
		}
		c.sources[0].run = func(ctx context.Context, handOver func(snapshot)) error {
			return files.run(ctx, func(s snapshot) { b.hands.Add(1); handOver(s) })
		}
		b.start = sync.OnceFunc(func() { go func() { b.done <- c.Run(ctx) }() })
		test(b)
		cancel()
		if err := <-b.done; err != nil {
			t.Errorf("run: %v", err)
		}
		if !w.closed {
			t.Error("the watcher was not closed")
		}
	})
}

// path returns the path of a name below the bench's folder.
func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }

// decoded returns how often the path was decoded, all paths together for "".
func (b *bench) decoded(path string) (sum int) {
	b.decodes.Range(func(p, n any) bool {
		if path == "" || p == path {
			sum += int(n.(*atomic.Int64).Load())
		}
		return true
	})
	return sum
}

// settle lets the quiet time pass and returns the operations that resulted.
func (b *bench) settle() string {
	b.t.Helper()
	b.start()
	time.Sleep(patience)
	synctest.Wait()
	return ops(b.Take())
}

func (b *bench) expect(want string) {
	b.t.Helper()
	if got := b.settle(); got != want {
		b.t.Errorf("operations: got %q, want %q", got, want)
	}
}

func (b *bench) expectProblems(want string) {
	b.t.Helper()
	if got := messages(b.Problems()); got != want {
		b.t.Errorf("problems: got\n%s\nwant\n%s", got, want)
	}
}

func TestFolder(t *testing.T) {
	inBubble(t, nil, nil, func(b *bench) {
		b.expect("ADD")
		if !b.SeenAllSources() {
			t.Error("an empty folder is not seen")
		}
		if !b.watcher.watches(b.dir) {
			t.Error("the folder is not watched")
		}
		write(t, b.path("b.yaml"), manifesttest.Pod("b", "i"))
		write(t, b.path("a.json"), `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"name":"c","image":"i"}]}}`)
		for _, name := range []string{".hidden.yaml", "b.yaml~", "#b.yaml#", ".b.yaml.swp", "b.swp", "b.swo", "b.swx", ".#b.yaml", "4913"} {
			write(t, b.path(name), manifesttest.Pod("ignored", "i"))
			b.watcher.touch(b.path(name))
		}
		if err := os.Mkdir(b.path("folder"), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, b.path("folder/c.yaml"), manifesttest.Pod("c", "i"))
		if err := syscall.Mkfifo(b.path("pipe"), 0o644); err != nil {
			t.Fatal(err)
		}
		b.watcher.touch(b.path("b.yaml"), b.path("a.json"), b.path("folder"), b.path("pipe"))
		b.expect("ADD default/a default/b")

		replace(t, b.path("b.yaml"), manifesttest.Pod("b", "other"))
		b.watcher.touch(b.path("b.yaml"))
		b.expect("REMOVE default/b; ADD default/b")

		if err := os.Chmod(b.path("b.yaml"), 0o600); err != nil {
			t.Fatal(err)
		}
		b.watcher.touch(b.path("b.yaml"))
		b.expect("")

		remove(t, b.path("b.yaml"))
		b.watcher.touch(b.path("b.yaml"))
		b.expect("REMOVE default/b")
		b.expectProblems("pipe warning: is neither a file nor a folder (mode prw-r--r--)")
		remove(t, b.path("pipe"))
		b.watcher.touch(b.path("pipe"))
		b.expect("")
		b.expectProblems("")
	})
}

// Folders of a folder are not read, which is said of those that are no paths of their own.
func TestFoldersOfAFolder(t *testing.T) {
	inBubble(t, []string{"", "web"}, nil, func(b *bench) {
		for _, dir := range []string{"web", "db", "old", "a", "b", ".git"} {
			if err := os.Mkdir(b.path(dir), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		write(t, b.path("web/pod.yaml"), manifesttest.Pod("web", "i"))
		write(t, b.path("db/pod.yaml"), manifesttest.Pod("db", "i"))
		b.expect("ADD default/web")
		b.expectProblems(filepath.Base(b.path("")) + " warning: folders in it are not read: a/, b/, db/ and 1 more; name those that hold manifests beside it")
	})
}

func TestRescanFindsWhatEventsMissed(t *testing.T) {
	inBubble(t, nil, nil, func(b *bench) {
		write(t, b.path("a.yaml"), manifesttest.Pod("a", "i"))
		b.expect("ADD default/a")
		write(t, b.path("b.yaml"), manifesttest.Pod("b", "i"))
		remove(t, b.path("a.yaml"))
		b.expect("")
		time.Sleep(defaultRescan)
		b.expect("REMOVE default/a; ADD default/b")
		b.watcher.events <- inotify.Event{Err: errors.New("overflow")}
		write(t, b.path("c.yaml"), manifesttest.Pod("c", "i"))
		b.expect("ADD default/c")
	})
}

func TestAFileThatIsBeingWrittenIsLeftAlone(t *testing.T) {
	inBubble(t, nil, nil, func(b *bench) {
		b.expect("ADD")
		for i := range 100 {
			write(t, b.path("a.yaml"), manifesttest.Pod("a", "i")+fmt.Sprintf("# %d\n", i))
			b.watcher.touch(b.path("a.yaml"))
			time.Sleep(quiet / 2)
		}
		synctest.Wait()
		if n := b.decoded(b.path("a.yaml")); n != 0 {
			t.Errorf("read %d times while it was written", n)
		}
		b.expect("ADD default/a")
		if n := b.decoded(b.path("a.yaml")); n != 1 {
			t.Errorf("read %d times after it was written", n)
		}
	})
}

func TestAFileThatTurnsBadKeepsItsLastGoodPods(t *testing.T) {
	two := manifesttest.Pod("a", "i") + "---\n" + manifesttest.Pod("b", "i")
	for name, tt := range map[string]struct{ content, ops, problems string }{
		"broken": {
			"apiVersion: [", "",
			"a.yaml error: invalid YAML: line 1: did not find expected node content; until this is mended the last good version stays: default/a, default/b",
		},
		"emptied": {
			"", "",
			"a.yaml error: is empty: a manifest needs apiVersion, kind, metadata and spec; until this is mended the last good version stays: default/a, default/b",
		},
		"one document broken, the other changed": {
			manifesttest.Pod("a", "j") + "---\n" + manifesttest.Pod("b", `""`), "REMOVE default/a; ADD default/a",
			"a.yaml error: spec.containers[0].image: Required value; until this is mended the last good version stays: default/b",
		},
		"one document broken, a new one": {
			manifesttest.Pod("c", "j") + "---\nkind: Pod\n", "ADD default/c",
			"a.yaml error: apiVersion: Required value: must be \"v1\"; until this is mended the last good version stays: default/a, default/b",
		},
		"a document gone": {manifesttest.Pod("a", "i"), "REMOVE default/b", ""},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, nil, nil, func(b *bench) {
				write(t, b.path("a.yaml"), two)
				b.expect("ADD default/a default/b")
				write(t, b.path("a.yaml"), tt.content)
				b.watcher.touch(b.path("a.yaml"))
				b.expect(tt.ops)
				b.expectProblems(tt.problems)
				time.Sleep(3 * defaultRescan)
				b.expect("")

				remove(t, b.path("a.yaml"))
				b.watcher.touch(b.path("a.yaml"))
				b.settle()
				b.expectProblems("")
				if left := b.feeds[0].delivered.pods; len(left) > 0 {
					t.Errorf("pods of a removed file stay: %d", len(left))
				}
			})
		})
	}
}

func TestMendedFile(t *testing.T) {
	inBubble(t, nil, nil, func(b *bench) {
		write(t, b.path("a.yaml"), manifesttest.Pod("a", "i"))
		write(t, b.path("other.yaml"), manifesttest.Pod("other", "i"))
		write(t, b.path("new.yaml"), "kind: Pod\n")
		b.expect("ADD default/a default/other")
		write(t, b.path("a.yaml"), "}")
		b.watcher.touch(b.path("a.yaml"))
		b.expect("")
		write(t, b.path("a.yaml"), manifesttest.Pod("a", "i"))
		b.watcher.touch(b.path("a.yaml"))
		b.expect("")
		b.expectProblems(`new.yaml error: apiVersion: Required value: must be "v1"`)
	})
}

func TestTooLargeFile(t *testing.T) {
	inBubble(t, nil, nil, func(b *bench) {
		write(t, b.path("a.yaml"), manifesttest.Pod("a", "i"))
		b.expect("ADD default/a")
		if err := os.Truncate(b.path("a.yaml"), maxManifest+1); err != nil {
			t.Fatal(err)
		}
		b.watcher.touch(b.path("a.yaml"))
		b.expect("")
		b.expectProblems("a.yaml error: cannot be read: larger than the limit of 10485760 bytes for a manifest; " +
			"until this is mended the last good version stays: default/a")
		hands := b.hands.Load()
		time.Sleep(3 * defaultRescan)
		if b.hands.Load() != hands {
			t.Error("an unchanged problem is handed over again")
		}
	})
}

func TestPathsThatDoNotExistYet(t *testing.T) {
	inBubble(t, []string{"x/y/z", "one.yaml"}, nil, func(b *bench) {
		b.expect("ADD")
		if !b.SeenAllSources() {
			t.Error("a path that does not exist is not seen")
		}
		b.expectProblems("one.yaml warning: does not exist; it is read as soon as it does\nz warning: does not exist; it is read as soon as it does")
		if err := os.MkdirAll(b.path("x"), 0o755); err != nil {
			t.Fatal(err)
		}
		b.watcher.touch(b.path("x"))
		b.expect("")
		if !b.watcher.watches(b.path("x")) {
			t.Error("the nearest folder is not watched")
		}
		if err := os.MkdirAll(b.path("x/y/z"), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, b.path("x/y/z/a.yaml"), manifesttest.Pod("a", "i"))
		b.watcher.touch(b.path("x/y"))
		b.expect("ADD default/a")
		write(t, b.path("x/y/z/b.yaml"), manifesttest.Pod("b", "i"))
		b.watcher.touch(b.path("x/y/z/b.yaml"))
		b.expect("ADD default/b")

		write(t, b.path("one.yaml"), manifesttest.Pod("one", "i"))
		b.watcher.touch(b.path("one.yaml"))
		b.expect("ADD default/one")

		remove(t, b.path("x"))
		b.watcher.touch(b.path("x/y/z"))
		b.expect("REMOVE default/a default/b")
	})
}

func TestRootThatIsNoFile(t *testing.T) {
	inBubble(t, []string{"pipe", "good"}, func(c *Config) {
		if err := syscall.Mkfifo(c.Paths[0], 0o644); err != nil {
			t.Fatal(err)
		}
		write(t, c.Paths[1], manifesttest.Pod("a", "i"))
	}, func(b *bench) {
		b.expect("ADD default/a")
		if b.SeenAllSources() {
			t.Error("a source of which a part could not be read counts as seen")
		}
		b.expectProblems("pipe error: is neither a file nor a folder (mode prw-r--r--)")
		remove(t, b.path("pipe"))
		b.watcher.touch(b.path("pipe"))
		b.expect("ADD")
		if !b.SeenAllSources() {
			t.Error("not seen after the path was mended")
		}
	})
}

func TestFolderSwappedAsConfigMapsAre(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	version := func(name, content string) {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name, "a.yaml"), content)
		link(t, name, filepath.Join(dir, "..data_tmp"))
		if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	version("..v1", manifesttest.Pod("a", "i"))
	link(t, "..data/a.yaml", filepath.Join(dir, "a.yaml"))
	link(t, "nowhere", filepath.Join(dir, "b.yaml"))
	inBubbleAt(t, dir, nil, nil, func(b *bench) {
		b.expect("ADD default/a")
		b.expectProblems("b.yaml warning: is a symbolic link that leads nowhere")
		version("..v2", manifesttest.Pod("a", "j"))
		b.watcher.touch(b.path("..v2"), b.path("..data_tmp"), b.path("..data"))
		b.expect("REMOVE default/a; ADD default/a")
		if !b.watcher.watches(b.path("..v2")) || b.watcher.watches(b.path("..v1")) {
			t.Error("the watch did not follow the link")
		}
		// An edit of the target in place has no event in the folder itself.
		write(t, b.path("..v2/a.yaml"), manifesttest.Pod("a", "k"))
		b.watcher.touch(b.path("..v2/a.yaml"))
		b.expect("REMOVE default/a; ADD default/a")
		write(t, b.path("nowhere"), manifesttest.Pod("b", "k"))
		b.watcher.touch(b.path("nowhere"))
		b.settle()
		b.expectProblems("nowhere error: pod default/b stands in " + b.path("b.yaml") + " already; the first one counts: change or remove the other one")
	})
}

func link(t *testing.T, to, at string) {
	t.Helper()
	if err := os.Symlink(to, at); err != nil {
		t.Fatal(err)
	}
}

func TestOverlappingPathsAndDuplicates(t *testing.T) {
	var told []string
	record := func(c *Config) {
		c.Event = func(p *v1.Pod, eventtype, reason, message string) {
			messagestest.SawEvent(reason, message)
			told = append(told, fmt.Sprintf("%s %s %s: %s", p.UID, eventtype, reason, message))
		}
	}
	inBubble(t, []string{"", "b.yaml"}, record, func(b *bench) {
		write(t, b.path("a.yaml"), manifesttest.Pod("same", "i"))
		write(t, b.path("b.yaml"), manifesttest.Pod("same", "j"))
		b.expect("ADD default/same")
		if got := b.feeds[0].delivered.pods[0].Annotations[pod.ManifestAnnotation]; got != b.path("a.yaml") {
			t.Errorf("the first file does not win: %s", got)
		}
		if got := len(b.Problems()); got != 1 {
			t.Errorf("problems: %v", b.Problems())
		}
		time.Sleep(3 * defaultRescan) // the same again is no news
		b.settle()
		dropped := decodeAt(pod.FileSource, b.path("b.yaml"), manifesttest.Pod("same", "j")).pods[0].UID
		want := fmt.Sprintf("%s Warning FailedValidation: Error validating pod same_default(%[1]s) from file due to duplicate pod name \"same\", ignoring: pod default/same stands in %s already", dropped, b.path("a.yaml"))
		if diff := cmp.Diff([]string{want}, told); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		remove(t, b.path("a.yaml"))
		b.watcher.touch(b.path("a.yaml"))
		b.expect("REMOVE default/same; ADD default/same")
		b.expectProblems("")
	})
}

func TestThousandsOfFilesAreReadOnce(t *testing.T) {
	const n = 1500
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	name := func(i int) string { return filepath.Join(dir, fmt.Sprintf("pod-%04d.yaml", i)) }
	content := func(i int) string { return manifesttest.Pod(fmt.Sprintf("pod-%04d", i), "i") }
	for i := range n {
		write(t, name(i), content(i))
	}
	inBubbleAt(t, dir, nil, nil, func(b *bench) {
		total := func() int { return b.decoded("") }
		b.settle()
		if total() != n || b.hands.Load() != 1 || len(b.feeds[0].delivered.pods) != n {
			t.Fatalf("first listing: %d files read, %d sets, %d pods", total(), b.hands.Load(), len(b.feeds[0].delivered.pods))
		}
		time.Sleep(5 * defaultRescan)
		synctest.Wait()
		if total() != n || b.hands.Load() != 1 {
			t.Errorf("after rescans: %d files read, %d sets", total(), b.hands.Load())
		}
		for i := range n { // two events each, as create and write give, in one burst
			write(t, name(i), content(i)+"# changed\n")
			b.watcher.touch(name(i), name(i))
		}
		b.settle()
		if total() != 2*n {
			t.Errorf("after a burst of changes: %d files read, want %d", total(), 2*n)
		}
		if b.hands.Load() > 2 {
			t.Errorf("a burst gave %d sets", b.hands.Load()-1)
		}
		write(t, name(7), manifesttest.Pod("pod-0007", "j"))
		b.watcher.touch(name(7))
		b.expect("REMOVE default/pod-0007; ADD default/pod-0007")
		if total() != 2*n+1 {
			t.Errorf("one change: %d files read", total()-2*n)
		}
	})
}

func TestWatcherThatCannotBeOpenedOrEnds(t *testing.T) {
	dir := t.TempDir()
	var opened atomic.Int32
	var w atomic.Pointer[fakeWatcher]
	var log lockedBuffer
	inBubbleAt(t, dir, nil, func(c *Config) {
		first := c.Watch
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
		c.Watch = func() (Watcher, error) {
			switch n := opened.Add(1); {
			case n <= 2:
				return nil, syscall.EMFILE
			case n == 3:
				w.Store(newFakeWatcher())
				return w.Load(), nil
			}
			return first()
		}
	}, func(b *bench) {
		b.expect("ADD")
		write(t, b.path("a.yaml"), manifesttest.Pod("a", "i"))
		time.Sleep(defaultRescan)
		b.expect("ADD default/a")
		synctest.Wait()
		if n := opened.Load(); n != 2 {
			t.Fatalf("opened %d times", n)
		}
		if n := strings.Count(log.String(), "level=WARN"); n != 1 {
			t.Errorf("%d warnings:\n%s", n, log.String())
		}
		time.Sleep(defaultRescan)
		synctest.Wait()
		close(w.Load().events)
		time.Sleep(defaultRescan)
		synctest.Wait()
		if n := opened.Load(); n != 4 || !w.Load().isClosed() {
			t.Errorf("opened %d times, closed %v", n, w.Load().isClosed())
		}
		write(t, b.path("b.yaml"), manifesttest.Pod("b", "i"))
		b.watcher.touch(b.path("b.yaml"))
		b.expect("ADD default/b")
	})
}

// lockedBuffer is a buffer that is written and read side by side.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestResolve(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := os.MkdirAll(at("real/sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, at("real/sub/f"), "")
	link(t, "real", at("rel"))
	link(t, at("rel/sub"), at("abs"))
	link(t, "loop", at("loop"))
	tests := []struct {
		path   string
		places []place
		target string
		ok     bool
	}{
		{"real/sub/f", []place{{at("real/sub"), "f"}}, at("real/sub/f"), true},
		{"rel/sub/f", []place{{dir, "rel"}, {at("real/sub"), "f"}}, at("real/sub/f"), true},
		{"abs/f", []place{{dir, "abs"}, {dir, "rel"}, {at("real/sub"), "f"}}, at("real/sub/f"), true},
		{"abs/missing/deeper", []place{{dir, "abs"}, {dir, "rel"}, {at("real/sub"), "missing"}}, "", false},
	}
	for _, tt := range tests {
		t.Run(tt.path, func(t *testing.T) {
			places, target, ok := resolve(at(tt.path))
			if diff := cmp.Diff(tt.places, places, cmp.AllowUnexported(place{})); diff != "" || target != tt.target || ok != tt.ok {
				t.Errorf("target %q, ok %v, places (-want +got):\n%s", target, ok, diff)
			}
		})
	}
	if _, _, ok := resolve(at("loop")); ok {
		t.Error("a loop leads somewhere")
	}
	if _, target, ok := resolve(at("abs") + "/../sub/f"); !ok || target != at("real/sub/f") {
		t.Errorf("link/..: %q, %v", target, ok)
	}
}

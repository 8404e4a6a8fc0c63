package nodelogs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// newLogs returns a log folder with these files, beside a file secret that must not be read.
func newLogs(t *testing.T, files map[string]string) *Logs {
	t.Helper()
	top := t.TempDir()
	write(t, filepath.Join(top, "secret"), "secret")
	dir := filepath.Join(top, "log")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		write(t, filepath.Join(dir, name), text)
	}
	return &Logs{Dir: dir, Journalctl: filepath.Join(top, "no-journalctl")}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func TestOpen(t *testing.T) {
	l := newLogs(t, map[string]string{"a.log": "a", "pods/p/0.log": "p"})
	link := func(name, target string) {
		t.Helper()
		if err := os.Symlink(target, filepath.Join(l.Dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	link("relative", "pods/p/0.log")
	link("absolute", filepath.Join(l.Dir, "pods/p/0.log"))
	link("twice", filepath.Join(l.Dir, "absolute"))
	link("folder", filepath.Join(l.Dir, "pods"))
	link("out", "../secret")
	link("out-absolute", filepath.Join(filepath.Dir(l.Dir), "secret"))
	link("out-through", filepath.Join(l.Dir, "out"))
	link("out-folder", "..")
	link("sibling", l.Dir+"-other/x")
	link("loop", "loop")
	link("circle", filepath.Join(l.Dir, "circle"))
	link("dangling", "nothing")
	if err := unix.Mkfifo(filepath.Join(l.Dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	link("to-pipe", "pipe")
	socket, err := net.Listen("unix", filepath.Join(l.Dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	for name, want := range map[string]string{
		"a.log": "a", "/a.log": "a", "//a.log": "a", "./a.log": "a", "pods/p/0.log": "p", "pods/../a.log": "a", "relative": "p", "absolute": "p", "twice": "p",
		"": "folder", "/": "folder", "pods/": "folder", "folder": "folder",
		"nothing": "none", "..": "none", "../secret": "none", "/../secret": "none", "pods/../../secret": "none", "out": "none", "out-absolute": "none",
		"out-through": "none", "out-folder/secret": "none", "sibling": "none", "loop": "none", "circle": "none", "dangling": "none", "pipe": "none",
		"to-pipe": "none", "s": "none", "a.log/x": "none", "a\x00": "none", strings.Repeat("a", 300): "none", "/etc/passwd": "none",
	} {
		f, st, err := l.Open(name)
		got := "none"
		switch {
		case err == nil && st.IsDir():
			got = "folder"
		case err == nil:
			b, err := io.ReadAll(f)
			if err != nil {
				t.Fatal(err)
			}
			got = string(b)
		case !errors.Is(err, fs.ErrNotExist):
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q is %q, want %q", name, got, want)
		}
		if f != nil {
			f.Close()
		}
	}
}

func TestFile(t *testing.T) {
	long := strings.Repeat("x", 3*lineBuffer)
	l := newLogs(t, map[string]string{
		"a.log": "one\ntwo\nthree\ntwo and\nfour", "empty": "", "long": "first\n" + long + "\nlast " + long, "web/web.log": "in its folder\n", "api.log": "beside\n",
	})
	for _, c := range []struct {
		name  string
		query Query
		want  string // output, or part of the error
		kind  string // of the error
	}{
		{"all", Query{File: "/a.log"}, "one\ntwo\nthree\ntwo and\nfour", ""},
		{"the last", Query{File: "a.log", TailLines: new(2)}, "two and\nfour", ""},
		{"more than there are", Query{File: "/a.log", TailLines: new(9)}, "one\ntwo\nthree\ntwo and\nfour", ""},
		{"no line", Query{File: "/a.log", TailLines: new(0)}, "", ""},
		{"a pattern", Query{File: "/a.log", Pattern: "^t.o"}, "two\ntwo and\n", ""},
		{"the last of a pattern", Query{File: "/a.log", Pattern: "o$", TailLines: new(1)}, "two\n", ""},
		{"an empty file", Query{File: "/empty", TailLines: new(3)}, "", ""},
		{"the last long line", Query{File: "/long", TailLines: new(1)}, "last " + long, ""},
		{"a long line that matches", Query{File: "/long", Pattern: "^x"}, long + "\n", ""},
		{"a service in a folder", Query{Services: []string{"web"}}, "in its folder\n", ""},
		{"two services", Query{Services: []string{"web", "api"}}, "in its folder\nbeside\n", ""},
		{"a file that is not there", Query{File: "/b.log"}, `log "/b.log"`, "missing"},
		{"a folder", Query{File: "/web"}, "a folder", "missing"},
		{"a service that is not there", Query{Services: []string{"web", "db"}}, `service "db": not in the journal, and`, "missing"},
		{"a pattern that is none", Query{File: "/a.log", Pattern: "("}, "missing closing )", "query"},
		{"a file's time", Query{Services: []string{"api"}, Since: time.Unix(1, 0)}, `service "api": it logs to a file`, "query"},
	} {
		check(t, c.name, l, c.query, c.want, c.kind)
	}
}

// check compares the output of the query, or with a kind its error, before which nothing may be
// written.
func check(t *testing.T, name string, l *Logs, q Query, want, kind string) {
	t.Helper()
	var out strings.Builder
	err := l.Write(t.Context(), q, &out)
	got := out.String()
	var query *QueryError
	switch {
	case kind == "":
		if err != nil || got != want {
			t.Errorf("%s: %.200q, %v; want %.200q", name, got, err, want)
		}
	case err == nil || !strings.Contains(err.Error(), want) || got != "":
		t.Errorf("%s: %.200q, error %v; want %q", name, got, err, want)
	case errors.Is(err, fs.ErrNotExist) != (kind == "missing") || errors.As(err, &query) != (kind == "query"):
		t.Errorf("%s: %v is no error of the kind %q", name, err, kind)
	}
}

// withJournal gives the logs a journalctl that is this script, after it has dealt with the question
// what the journal has: of the service inside alone.
func withJournal(t *testing.T, l *Logs, script string) {
	t.Helper()
	l.Journalctl = filepath.Join(filepath.Dir(l.Dir), "journalctl")
	text := fmt.Sprintf("#!/bin/sh\ncase \"$*\" in *--lines=1) case \"$*\" in *--unit=inside*) echo some;; esac; exit 0;; esac\n%s\n", script)
	write(t, l.Journalctl, text)
	if err := os.Chmod(l.Journalctl, 0o700); err != nil {
		t.Fatal(err)
	}
}

func TestJournal(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 600_000_000, time.FixedZone("", 3600))
	inside := []string{"inside"}
	for _, c := range []struct {
		name, script string
		query        Query
		want, kind   string
	}{
		{
			"arguments", `for a; do echo "$a"; done`,
			Query{Services: []string{"inside", "inside.socket"}, Since: at, Until: at, Boot: new(-2), Pattern: "a b;c $(id)", TailLines: new(5)},
			"--quiet\n--no-pager\n--utc\n--output=short-iso-precise\n--unit=inside\n--unit=inside.socket\n--since=2026-01-02 02:04:05.600000 UTC\n" +
				"--until=2026-01-02 02:04:05.600000 UTC\n--boot=-2\n--case-sensitive=yes\n--grep=a b;c $(id)\n--lines=5\n", "",
		},
		{"environment", `echo $LC_ALL $HOME`, Query{Services: inside}, "C.UTF-8\n", ""},
		{"nothing matches", `exit 1`, Query{Services: inside, Pattern: "x"}, "", ""},
		{"a pattern that is none", `echo 'Bad pattern "(": missing' >&2; exit 1`, Query{Services: inside, Pattern: "("}, `Bad pattern "(": missing`, "query"},
		{"a boot that is gone", `echo 'Data from the specified boot (-9) is not available' >&2; exit 1`, Query{Services: inside, Boot: new(-9)}, "specified boot (-9)", "query"},
		{"a journal that cannot be read", `echo 'Failed to open' >&2; exit 1`, Query{Services: inside}, "journalctl: exit status 1: Failed to open", "other"},
		{"many complaints", `yes no | head -c 100000 >&2; exit 3`, Query{Services: inside}, "exit status 3", "other"},
		{"journal first, then files", `echo journal`, Query{Services: []string{"api", "inside"}}, "journal\nbeside\n", ""},
		{"in neither", `echo journal`, Query{Services: []string{"inside", "db"}}, `service "db"`, "missing"},
	} {
		l := newLogs(t, map[string]string{"api.log": "beside\n"})
		withJournal(t, l, c.script)
		check(t, c.name, l, c.query, c.want, c.kind)
	}
}

// firstWrite closes begun with the first write.
type firstWrite struct{ begun chan struct{} }

func (w *firstWrite) Write(b []byte) (int, error) {
	if w.begun != nil {
		close(w.begun)
		w.begun = nil
	}
	return len(b), nil
}

// A journalctl does not outlive the question.
func TestJournalEndsWithItsQuestion(t *testing.T) {
	l := newLogs(t, nil)
	withJournal(t, l, `echo $$ > "$0.pid"; while echo line; do :; done`)
	ctx, cancel := context.WithCancel(t.Context())
	begun := make(chan struct{})
	ended := make(chan error, 1)
	go func() { ended <- l.Write(ctx, Query{Services: []string{"inside"}}, &firstWrite{begun: begun}) }()
	<-begun
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the end of a question that was given up: %v", err)
	}
	b, err := os.ReadFile(l.Journalctl + ".pid")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/proc/" + strings.TrimSpace(string(b))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("journalctl is still there: %v", err)
	}
}

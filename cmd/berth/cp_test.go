package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

// computer is a runtime whose containers have this machine's programs, but for those that are
// hidden.
type computer struct {
	streaming.Runtime
	dir    string // working directory of the programs
	hidden string
}

func (m computer) Exec(ctx context.Context, _ string, args []string, in io.Reader, out, errOut io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
	if args[0] == m.hidden {
		return fmt.Errorf("OCI runtime exec failed: unable to start container process: exec: %q: executable file not found in $PATH", args[0])
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = m.dir, in, out, errOut
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return utilexec.CodeExitError{Err: err, Code: exit.ExitCode()}
	}
	return err
}

// copyFiles runs berth cp with the arguments. theirs is the working directory of the container.
func copyFiles(t *testing.T, theirs string, f copyFlags, from, to string) (said string, err error) {
	t.Helper()
	runDir, _ := startProgramAgent(t, runningPod("default", "web", ""), computer{dir: theirs})
	var out, errOut bytes.Buffer
	err = f.run(t.Context(), newClient(runDir), from, to, streams{nil, &out, &errOut})
	if out.Len() > 0 {
		t.Errorf("said %q", out.String())
	}
	return errOut.String(), err
}

// fill makes files below dir: content, or "-> target" for a link, or "/" for a folder.
func fill(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		file := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(file), 0o755)
		if target, ok := strings.CutPrefix(content, "-> "); ok {
			err = errors.Join(err, os.Symlink(target, file))
		} else if content == "/" {
			err = errors.Join(err, os.MkdirAll(file, 0o755))
		} else {
			err = errors.Join(err, os.WriteFile(file, []byte(content), 0o644))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// found returns what fill made.
func found(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, file)
		switch {
		case d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(file)
			files[name] = "-> " + target
			return err
		case d.IsDir():
			if entries, err := os.ReadDir(file); err != nil || len(entries) > 0 || file == dir {
				return err
			}
			files[name] = "/"
		default:
			content, err := os.ReadFile(file)
			files[name] = string(content)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestCopy(t *testing.T) {
	tree := map[string]string{"site/a": "A", "site/b/c": "C", "site/b/empty": "/", "site/up": "-> b/c", "site/b/down": "-> ../a", "-x": "dash"}
	for name, c := range map[string]struct {
		flags        copyFlags
		from, to     string
		ours, theirs map[string]string // before
		want         map[string]string // after, at the other side
		said, err    string
	}{
		"file there":                 {from: "site/a", to: "web:b", ours: tree, want: map[string]string{"b": "A"}},
		"file into a folder there":   {from: "site/a", to: "web:dir", ours: tree, theirs: map[string]string{"dir": "/"}, want: map[string]string{"dir/a": "A"}},
		"folder there":               {from: "site", to: "web:new", ours: tree, want: map[string]string{"new/a": "A", "new/b/c": "C", "new/b/empty": "/", "new/up": "-> b/c", "new/b/down": "-> ../a"}},
		"folder into a folder there": {from: "site/b", to: "default/web:dir", ours: tree, theirs: map[string]string{"dir": "/"}, want: map[string]string{"dir/b/c": "C", "dir/b/empty": "/", "dir/b/down": "-> ../a"}},
		"link there":                 {from: "site/up", to: "web:file", ours: tree, want: map[string]string{"file": "C"}},
		"owner not kept":             {flags: copyFlags{noPreserve: true}, from: "site/a", to: "web:b", ours: tree, want: map[string]string{"b": "A"}},
		"nothing there":              {from: "nothing", to: "web:b", want: map[string]string{}, err: "no such file or directory"},
		"no folder there":            {from: "site/a", to: "web:no/such/file", ours: tree, want: map[string]string{}, said: "tar: ", err: "command terminated with exit code 2"},
		"file here":                  {from: "web:site/a", to: "b", theirs: tree, want: map[string]string{"b": "A"}},
		"file over another":          {from: "web:site/a", to: "b", theirs: tree, ours: map[string]string{"b": "longer"}, want: map[string]string{"b": "A"}},
		"file into a folder here":    {from: "web:site/a", to: "dir", theirs: tree, ours: map[string]string{"dir": "/"}, want: map[string]string{"dir/a": "A"}},
		"file into a new folder":     {from: "web:site/a", to: "x/y/", theirs: tree, want: map[string]string{"x/y/a": "A"}},
		"file behind our link":       {from: "web:site/a", to: "l", theirs: tree, ours: map[string]string{"d/b": "B", "l": "-> d/b"}, want: map[string]string{"d/b": "A", "l": "-> d/b"}},
		"name like a flag":           {from: "web:-x", to: "y", theirs: tree, want: map[string]string{"y": "dash"}},
		"folder here":                {from: "web:site/", to: "new", theirs: tree, want: map[string]string{"new/a": "A", "new/b/c": "C", "new/b/empty": "/", "new/up": "-> b/c", "new/b/down": "-> ../a"}},
		"folder into a folder here":  {from: "web:site/b", to: "dir", theirs: map[string]string{"site/b/c": "C"}, ours: map[string]string{"dir/own": "1"}, want: map[string]string{"dir/c": "C", "dir/own": "1"}},
		"all of a folder":            {from: "web:.", to: "new", theirs: map[string]string{"a": "A"}, want: map[string]string{"new/a": "A"}},
		"nothing to get":             {from: "web:nothing", to: "new", want: map[string]string{}, said: "nothing", err: "command terminated with exit code 2"},
		"links that lead out": {
			from: "web:site", to: "new", theirs: map[string]string{"site/a": "-> /etc", "site/b": "-> ../..", "site/c": "-> d/../../e", "site/d/e": "E"},
			want: map[string]string{"new/d/e": "E"},
			said: `warning: skipping symlink: "./site/a" -> "/etc": it leads out of what is copied`,
		},
		"two pods":      {from: "web:a", to: "web:b", want: map[string]string{}, err: "one of"},
		"no pod":        {from: "a", to: "b", want: map[string]string{}, err: "one of"},
		"unknown pod":   {from: "wep:a", to: "b", want: map[string]string{}, err: `pod "wep" not found; did you mean "web"?`},
		"no container":  {flags: copyFlags{container: "x"}, from: "web:a", to: "b", want: map[string]string{}, err: `pod "web" has no container "x"; it has main`},
		"no path there": {from: "web:", to: "b", want: map[string]string{}, err: `"web:": the path is empty`},
		"no name":       {from: ":a", to: "b", want: map[string]string{}, err: `":a": expected`},
		"colon in ours": {from: "./a:b", to: "web:b", ours: map[string]string{"a:b": "A"}, want: map[string]string{"b": "A"}},
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := t.TempDir(), t.TempDir()
			fill(t, ours, c.ours)
			fill(t, theirs, c.theirs)
			t.Chdir(ours)
			said, err := copyFiles(t, theirs, c.flags, c.from, c.to)
			if (err == nil) != (c.err == "") || !strings.Contains(fmt.Sprint(err), c.err) || (said == "") != (c.said == "") || !strings.Contains(said, c.said) {
				t.Errorf("got %v, and said %q; want %q and %q", err, said, c.err, c.said)
			}
			other := ours
			if strings.Contains(c.to, ":") {
				other = theirs
			}
			if diff := cmp.Diff(c.want, found(t, other)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Bits that say who may read and run a file come along; those that lend it to others do not.
func TestCopyKeepsPermissions(t *testing.T) {
	ours, theirs := t.TempDir(), t.TempDir()
	fill(t, theirs, map[string]string{"run": "1"})
	if err := os.Chmod(filepath.Join(theirs, "run"), 0o750|fs.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	if said, err := copyFiles(t, theirs, copyFlags{}, "web:run", ours); err != nil {
		t.Fatal(said, err)
	}
	info, err := os.Stat(filepath.Join(ours, "run"))
	if err != nil || info.Mode() != 0o750 {
		t.Errorf("got %v, %v", info.Mode(), err)
	}
}

func TestCopyWithoutTar(t *testing.T) {
	runDir, _ := startProgramAgent(t, runningPod("default", "web", ""), computer{dir: t.TempDir(), hidden: "tar"})
	ours := filepath.Join(t.TempDir(), "a")
	fill(t, filepath.Dir(ours), map[string]string{"a": "A"})
	for _, c := range [][2]string{{"web:a", ours}, {ours, "web:a"}} {
		var errOut bytes.Buffer
		err := copyFlags{retries: -1}.run(t.Context(), newClient(runDir), c[0], c[1], streams{nil, io.Discard, &errOut})
		if !strings.HasPrefix(fmt.Sprint(err), `container "main" of pod "web" has no tar, without which nothing is copied: `) {
			t.Errorf("%s to %s: %v %s", c[0], c[1], err, errOut.String())
		}
	}
}

// breaking is a runtime whose programs break off so many times.
type breaking struct {
	computer
	left *int
}

func (b breaking) Exec(ctx context.Context, id string, args []string, in io.Reader, out, errOut io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	if *b.left > 0 {
		*b.left--
		return errors.New("the shim is gone")
	}
	return b.computer.Exec(ctx, id, args, in, out, errOut, tty, resize)
}

func TestCopyRetries(t *testing.T) {
	for _, c := range []struct {
		breaks, retries int
		ok              bool
	}{{1, 0, false}, {1, 1, true}, {2, 1, false}, {1, -1, true}} {
		theirs, ours := t.TempDir(), t.TempDir()
		fill(t, theirs, map[string]string{"a": "A"})
		left := c.breaks
		runDir, _ := startProgramAgent(t, runningPod("default", "web", ""), breaking{computer{dir: theirs}, &left})
		var errOut bytes.Buffer
		err := copyFlags{retries: c.retries}.run(t.Context(), newClient(runDir), "web:a", ours, streams{nil, io.Discard, &errOut})
		if (err == nil) != c.ok || !c.ok && !errors.Is(err, errBrokeOff) {
			t.Errorf("%+v: %v %s", c, err, errOut.String())
		}
		if _, err := os.Stat(filepath.Join(ours, "a")); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

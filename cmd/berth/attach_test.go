package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	v1 "k8s.io/api/core/v1"
)

func TestAttach(t *testing.T) {
	for name, c := range map[string]struct {
		flags          attachFlags
		stdin, tty     bool // of the container
		phase          v1.PodPhase
		out, errOut    string
		err            string
		inputIsIgnored bool
	}{
		"output":           {out: "c1 tty=false stderr=true\n"},
		"input":            {flags: attachFlags{joinFlags: joinFlags{stdin: true}}, stdin: true, out: "c1 tty=false stderr=true\ninput"},
		"terminal there":   {tty: true, out: "c1 tty=true stderr=false\n"},
		"container":        {flags: attachFlags{joinFlags: joinFlags{container: "x"}}, err: `pod "web" has no container "x"; it has main`},
		"keys":             {flags: attachFlags{detachKeys: "ctrl-1"}, err: `--detach-keys: "ctrl-1" is not a key: expected a character, or one like "ctrl-p"`},
		"over":             {phase: v1.PodFailed, err: "cannot attach a container in a completed pod; current phase is Failed"},
		"no input there":   {flags: attachFlags{joinFlags: joinFlags{stdin: true}}, out: "c1 tty=false stderr=true\n", errOut: "Unable to use the input - container main was started without one (stdin: true)\n"},
		"no terminal":      {flags: attachFlags{joinFlags: joinFlags{stdin: true, tty: true}}, stdin: true, out: "c1 tty=false stderr=true\ninput", errOut: "Unable to use a TTY - container main did not allocate one\n"},
		"no terminal here": {flags: attachFlags{joinFlags: joinFlags{stdin: true, tty: true}}, stdin: true, tty: true, out: "c1 tty=true stderr=false\ninput", errOut: "Unable to use a TTY - input is not a terminal or the right kind of file\n"},
		"quiet":            {flags: attachFlags{joinFlags: joinFlags{stdin: true, tty: true, quiet: true}}, stdin: true, out: "c1 tty=false stderr=true\ninput"},
	} {
		t.Run(name, func(t *testing.T) {
			web := runningPod("default", "web", "")
			web.Spec.Containers[0].Stdin, web.Spec.Containers[0].TTY = c.stdin, c.tty
			if c.phase != "" {
				web.Status.Phase = c.phase
			}
			runDir, _ := startShellAgentOver(t, web)
			var out, errOut bytes.Buffer
			err := c.flags.run(t.Context(), newClient(runDir), "web", streams{strings.NewReader("input"), &out, &errOut})
			if got := fmt.Sprint(err); c.err == "" && err != nil || c.err != "" && got != c.err {
				t.Errorf("got %v, want %q", err, c.err)
			}
			if out.String() != c.out || errOut.String() != c.errOut {
				t.Errorf("got %q and %q, want %q and %q", out.String(), errOut.String(), c.out, c.errOut)
			}
		})
	}
}

// The keys end the session whatever else was typed, and other input is passed on as it is.
func TestDetachKeys(t *testing.T) {
	for _, c := range []struct {
		keys, in, out string
		detached      bool
	}{
		{"ctrl-p,ctrl-q", "ls\n", "ls\n", false},
		{"ctrl-p,ctrl-q", "a\x10\x11b", "a", true},
		{"ctrl-p,ctrl-q", "a\x10b\x11", "a\x10b\x11", false},
		{"ctrl-p,ctrl-q", "\x10\x10\x11", "\x10", true},
		{"ctrl-p,ctrl-q", "a\x10", "a\x10", false},
		{"q", "abq", "ab", true},
		{"ctrl-@,ctrl-[,ctrl-_,A", "A\x00\x1b\x1fa\x00\x1b\x1fA", "A\x00\x1b\x1fa", true},
	} {
		keys, err := parseKeys(c.keys)
		if err != nil {
			t.Fatal(err)
		}
		for name, in := range map[string]io.Reader{"at once": strings.NewReader(c.in), "one by one": iotest.OneByteReader(strings.NewReader(c.in))} {
			var out bytes.Buffer
			_, err := io.Copy(&out, &detachReader{in: in, keys: keys})
			if out.String() != c.out || errors.Is(err, errDetached) != c.detached || err != nil && !c.detached {
				t.Errorf("%q with %s, %s: got %q, %v; want %q, detached %v", c.in, c.keys, name, out.String(), err, c.out, c.detached)
			}
		}
	}
}

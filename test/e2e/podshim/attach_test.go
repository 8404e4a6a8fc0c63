//go:build e2e && podshim

package podshim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// screen is what a terminal shows, and a keyboard.
type screen struct {
	mu    sync.Mutex
	shown bytes.Buffer
	sizes chan remotecommand.TerminalSize
	keys  *io.PipeWriter
	in    io.Reader
}

func newScreen() *screen {
	in, keys := io.Pipe()
	return &screen{sizes: make(chan remotecommand.TerminalSize, 4), keys: keys, in: in}
}

func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shown.Write(b)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shown.String()
}

// Next is the next size; the terminal keeps the last one.
func (s *screen) Next() *remotecommand.TerminalSize {
	size, ok := <-s.sizes
	if !ok {
		return nil
	}
	return &size
}

func (r *rig) shows(s *screen, text string) {
	r.Helper()
	eventually(r, fmt.Sprintf("the terminal shows %q", text), func() error {
		if !strings.Contains(s.String(), text) {
			return fmt.Errorf("it shows %q", s)
		}
		return nil
	})
}

// A terminal has a name in its container, a size that changes, and a keyboard: of an exec, and of a
// container that somebody attaches to.
func TestTerminals(t *testing.T) {
	r := newRig(t)
	sleeps := r.pair("exec", func(*cri.ContainerConfig) {}, "sleep")
	attached := r.pair("attach", func(c *cri.ContainerConfig) { c.Tty, c.Stdin = true, true }, "tty")
	for _, h := range handlers {
		for name, c := range map[string]struct {
			id   string
			args []string
		}{"exec": {sleeps[h], []string{"/payload", "tty"}}, "attach": {attached[h], nil}} {
			s, done := newScreen(), make(chan error, 1)
			go func() {
				done <- r.stream(c.id, remotecommand.StreamOptions{Stdin: s.in, Stdout: s, Tty: true, TerminalSizeQueue: s}, c.args...)
			}()
			s.sizes <- remotecommand.TerminalSize{Width: 91, Height: 37}
			r.shows(s, "size 37 91")
			s.sizes <- remotecommand.TerminalSize{Width: 92, Height: 38}
			r.shows(s, "size 38 92")
			io.WriteString(s.keys, "keys\r")
			r.shows(s, `read "keys\n"`)
			err := <-done
			var code utilexec.CodeExitError
			if c.args != nil && (!errors.As(err, &code) || code.Code != 6) {
				t.Errorf("%s, %s: ended with %v, want exit code 6", h, name, err)
			}
			if c.args == nil && err != nil {
				t.Errorf("%s, %s: ended with %v", h, name, err)
			}
			if c.args != nil && !strings.HasPrefix(s.String(), "/dev/pts/0 <nil>, foreground true <nil>, TERM xterm\r\n") {
				t.Errorf("%s, %s: shows %q", h, name, s)
			}
			close(s.sizes)
		}
		if e := r.exits(attached[h]); e.ExitCode != 6 {
			t.Errorf("%s: the container ended with %v, want 6", h, e)
		}
		log := strings.Join(r.logged(r.logFile("attach-"+h, "c")), "|")
		if !strings.HasPrefix(log, "stdout F /dev/console <nil>, foreground true <nil>, TERM xterm|") && !strings.HasPrefix(log, "stdout F /dev/pts/0 <nil>, foreground true <nil>, TERM xterm|") || !strings.HasSuffix(log, `|stdout F read "keys\n"`) {
			t.Errorf("%s: the log: %q", h, log)
		}
	}
	for _, p := range r.pods() {
		r.must(r.remove(p.Id))
	}
	r.wantNothingLeft()
}

// A container with an input gets what is typed, and its end after the first who attaches if it is
// so wanted; who attaches gets all output, which is in the log once.
func TestAttach(t *testing.T) {
	r := newRig(t)
	for _, restart := range []bool{false, true} {
		name := fmt.Sprintf("attach%t", restart)
		containers := r.pair(name, func(c *cri.ContainerConfig) { c.Stdin, c.StdinOnce = true, true }, "cat")
		if restart {
			r.kill()
			r.start()
		}
		for _, h := range handlers {
			var text strings.Builder
			for i := range 40_000 {
				fmt.Fprintln(&text, "line", i)
			}
			var out, errs bytes.Buffer
			err := r.stream(containers[h], remotecommand.StreamOptions{Stdin: strings.NewReader(text.String()), Stdout: &out, Stderr: &errs})
			if err != nil || out.String() != text.String() || errs.String() != "end" {
				t.Errorf("%s, restart %t: %v, %d bytes, want %d, %q", h, restart, err, out.Len(), text.Len(), errs.String())
			}
			if s := r.exits(containers[h]); s.ExitCode != 4 {
				t.Errorf("%s, restart %t: %v, want exit code 4", h, restart, s)
			}
			if log := r.logged(r.logFile(name+"-"+h, "c")); len(log) != 40_001 {
				t.Errorf("%s, restart %t: %d lines in the log", h, restart, len(log))
			}
		}
	}
	for _, p := range r.pods() {
		r.must(r.remove(p.Id))
	}
	r.wantNothingLeft()
}

// Who does not read, and a container that does not read, stop nobody else.
func TestNobodyWaitsForWhoDoesNotRead(t *testing.T) {
	r := newRig(t)
	pod, err := r.pod("slow")
	r.must(err)
	c := containerConfig(r, "slow", "tty", "sleep")
	c.Stdin, c.Tty = true, true
	deaf, err := r.container(pod, c, func() {})
	r.must(err)
	writes, err := r.container(pod, containerConfig(r, "slow", "c", "write"), func() {})
	r.must(err)
	ctx, cancel := context.WithCancel(r.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	stuck, release := io.Pipe()
	defer stuck.Close()
	for _, id := range []string{deaf, writes} {
		wg.Go(func() {
			r.streamUntil(ctx, id, remotecommand.StreamOptions{Stdin: endless{}, Stdout: release, Tty: id == deaf}, id == deaf)
		})
		wg.Go(func() {
			r.streamUntil(ctx, id, remotecommand.StreamOptions{Stdout: release}, false, "/payload", "flood", "100000000")
		})
	}
	for range 20 {
		if o := r.execSync(writes, 5, "/payload", "say", "a", "b", "7"); o != (outcome{"a", "b", 7, ""}) {
			t.Fatalf("exec beside who does not read: %q", o)
		}
	}
	cancel()
	wg.Wait()
	r.must(r.remove(pod))
	r.wantNothingLeft()
}

// endless is a keyboard that never rests.
type endless struct{}

func (endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 'x'
	}
	return len(b), nil
}

func (r *rig) streamUntil(ctx context.Context, id string, o remotecommand.StreamOptions, in bool, args ...string) {
	if !in {
		o.Stdin = nil
	}
	var at string
	if len(args) == 0 {
		a, err := r.rt.Attach(ctx, &cri.AttachRequest{ContainerId: id, Stdin: in, Stdout: true, Tty: o.Tty})
		if err != nil {
			return
		}
		at = a.Url
	} else {
		a, err := r.rt.Exec(ctx, &cri.ExecRequest{ContainerId: id, Cmd: args, Stdin: in, Stdout: true, Tty: o.Tty})
		if err != nil {
			return
		}
		at = a.Url
	}
	if u, err := url.Parse(at); err == nil {
		if e, err := remotecommand.NewSPDYExecutor(&rest.Config{}, "POST", u); err == nil {
			e.StreamWithContext(ctx, o)
		}
	}
}

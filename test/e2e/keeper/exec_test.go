//go:build e2e && keeper

package keeper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// outcome is what an exec gave.
type outcome struct {
	Out, Err string
	Code     int32
	Error    string // from where the words are the same for all handlers
}

// handlers are who runs the pods that are compared.
var handlers = []string{"keeper", "stock"}

// pair has a pod with a container for each handler, made from the same configuration.
func (r *rig) pair(name string, change func(*cri.ContainerConfig), args ...string) map[string]string {
	r.Helper()
	containers := map[string]string{}
	for _, h := range handlers {
		p := podConfig(r, name+"-"+h)
		p.Hostname = name
		pod, err := r.podBy(h, p)
		r.must(err)
		c := containerConfig(r, name+"-"+h, "c", args...)
		if h == "stock" { // containerd writes its log
			c.LogPath, c.Annotations[logAnnotation] = "c.log", r.logFile(name+"-"+h, "c")
		}
		change(c)
		containers[h], err = r.container(pod, c, func() {})
		r.must(err)
	}
	return containers
}

func (r *rig) execSync(id string, seconds int64, args ...string) outcome {
	ctx, cancel := r.within()
	defer cancel()
	a, err := r.rt.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: id, Cmd: args, Timeout: seconds})
	return outcome{string(a.GetStdout()), string(a.GetStderr()), a.GetExitCode(), words(err)}
}

// words is the part of an error that users look at.
func words(err error) string {
	if err == nil {
		return ""
	}
	s := err.Error()
	for _, from := range []string{"unable to start container process", "timeout "} {
		if i := strings.Index(s, from); i >= 0 {
			return strings.TrimSuffix(s[i:], ": unknown")
		}
	}
	return s
}

// stream runs an exec, or attaches if there is no command.
func (r *rig) stream(id string, o remotecommand.StreamOptions, args ...string) error {
	r.Helper()
	ctx, cancel := r.within()
	defer cancel()
	var at string
	if len(args) == 0 {
		a, err := r.rt.Attach(ctx, &cri.AttachRequest{ContainerId: id, Stdin: o.Stdin != nil, Stdout: o.Stdout != nil, Stderr: o.Stderr != nil, Tty: o.Tty})
		r.must(err)
		at = a.Url
	} else {
		a, err := r.rt.Exec(ctx, &cri.ExecRequest{ContainerId: id, Cmd: args, Stdin: o.Stdin != nil, Stdout: o.Stdout != nil, Stderr: o.Stderr != nil, Tty: o.Tty})
		r.must(err)
		at = a.Url
	}
	u, err := url.Parse(at)
	r.must(err)
	e, err := remotecommand.NewSPDYExecutor(&rest.Config{}, "POST", u)
	r.must(err)
	return e.StreamWithContext(ctx, o)
}

// streamed is the outcome of an exec without a terminal.
func (r *rig) streamed(id string, in io.Reader, args ...string) outcome {
	r.Helper()
	var out, errs bytes.Buffer
	err := r.stream(id, remotecommand.StreamOptions{Stdin: in, Stdout: &out, Stderr: &errs}, args...)
	var code utilexec.CodeExitError
	if errors.As(err, &code) {
		return outcome{out.String(), errs.String(), int32(code.Code), ""}
	}
	return outcome{out.String(), errs.String(), 0, words(err)}
}

// The same execs give the same with keepers as with stock shims.
func TestExecIsAsWithStockShims(t *testing.T) {
	r := newRig(t)
	containers := r.pair("same", func(*cri.ContainerConfig) {}, "sleep")
	users := r.pair("user", func(c *cri.ContainerConfig) {
		sc := c.Linux.SecurityContext
		sc.RunAsUser, sc.RunAsGroup, sc.SupplementalGroups = &cri.Int64Value{Value: 1000}, &cri.Int64Value{Value: 2000}, []int64{3000}
		sc.NoNewPrivs, sc.ReadonlyRootfs = true, true
		sc.Capabilities = &cri.Capability{DropCapabilities: []string{"ALL"}, AddCapabilities: []string{"NET_BIND_SERVICE"}}
		c.WorkingDir, c.Envs = "/tmp", []*cri.KeyValue{{Key: "NAME", Value: []byte("value")}}
		c.Linux.Resources.OomScoreAdj = 321
	}, "sleep")
	const failed = "unable to start container process: "
	sync := func(args ...string) func(map[string]string, string) outcome {
		return func(ids map[string]string, h string) outcome { return r.execSync(ids[h], 0, args...) }
	}
	for name, c := range map[string]struct {
		ids  map[string]string
		try  func(map[string]string, string) outcome
		want outcome
	}{
		"exit code":          {containers, sync("/payload", "say", "out", "err", "3"), outcome{"out", "err", 3, ""}},
		"by PATH":            {containers, sync("payload", "say", "", "", "0"), outcome{Error: failed + `exec: "payload": executable file not found in $PATH`}},
		"not there":          {containers, sync("foo"), outcome{Error: failed + `exec: "foo": executable file not found in $PATH`}},
		"no such path":       {containers, sync("/foo"), outcome{Error: failed + `exec: "/foo": stat /foo: no such file or directory`}},
		"not executable":     {containers, sync("/plain"), outcome{Error: failed + `exec: "/plain": permission denied`}},
		"a folder":           {containers, sync("/tmp"), outcome{Error: failed + `exec: "/tmp": is a directory`}},
		"no program":         {containers, sync("/garbage"), outcome{Err: "exec /garbage: exec format error\n", Code: 255}},
		"no interpreter":     {containers, sync("/script"), outcome{Err: "exec /script: no such file or directory\n", Code: 255}},
		"signal":             {containers, sync("/payload", "signal", "9"), outcome{Code: 137}},
		"output by its name": {containers, sync("/payload", "reopen"), outcome{"/dev/stdout", "/dev/stderr", 0, ""}},
		"the same of a user": {users, sync("/payload", "reopen"), outcome{"/dev/stdout", "/dev/stderr", 0, ""}},
		"left behind":        {containers, sync("/payload", "leave", "5"), outcome{"bye\n", "", 5, ""}},
		"timeout": {containers, func(ids map[string]string, h string) outcome {
			return r.execSync(ids[h], 1, "/payload", "sleep")
		}, outcome{Error: "timeout 1s exceeded: context deadline exceeded"}},
		"too much output": {containers, func(ids map[string]string, h string) outcome {
			o := r.execSync(ids[h], 0, "/payload", "flood", "20000000")
			o.Out = fmt.Sprint(len(o.Out))
			return o
		}, outcome{Out: fmt.Sprint(16 << 20)}},
		"input": {containers, func(ids map[string]string, h string) outcome {
			text := strings.Repeat("some text\n", 100_000)
			o := r.streamed(ids[h], strings.NewReader(text), "/payload", "cat")
			o.Out = fmt.Sprint(o.Out == text)
			return o
		}, outcome{"true", "end", 4, ""}},
		"input that is not read": {containers, func(ids map[string]string, h string) outcome {
			if h == "stock" { // a stock shim ends such an exec when the client goes
				h = "keeper"
			}
			return r.streamed(ids[h], strings.NewReader(strings.Repeat("x\n", 1<<20)), "/payload", "take")
		}, outcome{Code: 2}},
		"no input": {containers, func(ids map[string]string, h string) outcome {
			return r.streamed(ids[h], nil, "/payload", "cat")
		}, outcome{"", "end", 4, ""}},
		"streamed and not there": {containers, func(ids map[string]string, h string) outcome {
			o := r.streamed(ids[h], nil, "foo")
			return o
		}, outcome{Error: failed + `exec: "foo": executable file not found in $PATH`}},
	} {
		for _, h := range handlers {
			if got := c.try(c.ids, h); got != c.want {
				t.Errorf("%s, %s: %.300q, want %q", name, h, got, c.want)
			}
		}
	}
	for name, ids := range map[string]map[string]string{"root": containers, "user": users} {
		var seen [2]seen
		for i, h := range handlers {
			o := r.execSync(ids[h], 0, "/payload", "look")
			if err := json.Unmarshal([]byte(o.Out), &seen[i]); err != nil {
				t.Fatalf("%s, %s: %v: %q", name, h, err, o)
			}
			seen[i].rest()
		}
		if !reflect.DeepEqual(seen[0], seen[1]) {
			t.Errorf("%s: an exec sees\n%+v, with stock shims\n%+v", name, seen[0], seen[1])
		}
	}
	for _, p := range r.pods() {
		r.must(r.remove(p.Id))
	}
	r.wantNothingLeft()
}

// rest leaves of what an exec sees what it shares with those of other handlers.
func (s *seen) rest() {
	status := map[string]string{}
	for _, k := range strings.Fields("CapAmb CapBnd CapEff CapInh CapPrm NoNewPrivs Uid Gid Groups Umask SigBlk SigIgn") {
		status[k] = s.Status[k]
	}
	s.Status, s.PID, s.Mounts, s.Cgroup, s.Root, s.Dev = status, 0, nil, nil, nil, nil
	delete(s.Files, "/etc/resolv.conf")
	s.Env = slices.DeleteFunc(s.Env, func(v string) bool { return strings.HasPrefix(v, "HOSTNAME=") }) // pods differ in it
	var fds []string
	for _, at := range s.Fds {
		if !strings.HasPrefix(at, "/sys/fs/cgroup/") {
			fds = append(fds, at)
		}
	}
	s.Fds = fds
}

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

// A container with an input gets what is typed, and its end after the first who attaches if it is so
// wanted; who attaches gets all output, which is in the log once.
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

// An exec that runs when containerd is killed goes on, and how it ended is known afterwards.
func TestExecsOutliveContainerd(t *testing.T) {
	r := newRig(t)
	pod, id := r.runs("outlives", "sleep")
	go r.execSync(id, 0, "/payload", "exit", "2500", "41")
	var before []execution
	eventually(r, "the exec runs", func() error {
		if before = r.execs(id); len(before) != 1 || before[0].state != "RUNNING" {
			return fmt.Errorf("execs: %v", before)
		}
		return nil
	})
	r.kill()
	time.Sleep(100 * time.Millisecond) // away for a moment
	r.start()
	eventually(r, "the exec has ended with its code", func() error {
		if now := r.execs(id); len(now) != 1 || now[0].id != before[0].id || now[0].pid != before[0].pid || now[0].state != "STOPPED" || now[0].code != 41 {
			return fmt.Errorf("execs: %v, before %v", now, before)
		}
		return nil
	})
	if o := r.execSync(id, 0, "/payload", "say", "x", "", "2"); o != (outcome{"x", "", 2, ""}) {
		t.Errorf("an exec after the restart: %q", o)
	}
	r.must(r.remove(pod))
	r.wantNothingLeft()
}

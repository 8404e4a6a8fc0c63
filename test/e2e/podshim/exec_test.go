//go:build e2e && podshim

package podshim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"testing"

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
var handlers = []string{"podshim", "stock"}

// pair has a pod with a container for each handler, made from the same configuration.
func (r *rig) pair(name string, change func(*cri.ContainerConfig), args ...string) map[string]string {
	r.Helper()
	return r.pairOf(name, "", func(*cri.PodSandboxConfig) {}, change, args...)
}

// pairOf is the same with handlers of this suffix and a change of the pods.
func (r *rig) pairOf(name, suffix string, pods func(*cri.PodSandboxConfig), change func(*cri.ContainerConfig), args ...string) map[string]string {
	r.Helper()
	containers := map[string]string{}
	for _, h := range handlers {
		p := podConfig(r, name+"-"+h)
		p.Hostname = name
		pods(p)
		pod, err := r.podBy(h+suffix, p)
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

// The same execs give the same with pod shims as with stock shims.
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
				h = "podshim"
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
	for h, want := range map[string]outcome{ // bundle/podshim/isolation.md gives the reason
		"podshim": {Error: failed + `exec: "lost": executable file not found in $PATH`},
		"stock":   {Err: "exec /usr/bin/lost: no such file or directory\n", Code: 255},
	} {
		if got := r.execSync(containers[h], 0, "lost"); got != want {
			t.Errorf("a script of PATH without its interpreter, %s: %q, want %q", h, got, want)
		}
	}
	for _, p := range r.pods() {
		r.must(r.remove(p.Id))
	}
	r.wantNothingLeft()
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
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", before[0].pid)); err != nil || strings.Count(string(b), r.groupOf(id)+"\n") < len(hierarchies()) {
		t.Errorf("the exec is not in the cgroups of its container: %s, %v", b, err)
	}
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", r.podshimOf(pod))); !strings.HasPrefix(exe, "/memfd:keeper") {
		t.Errorf("the program of the pod shim is %q, %v, want a copy in memory", exe, err)
	}
	r.kill()
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

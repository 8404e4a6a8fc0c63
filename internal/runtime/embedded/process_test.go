package embedded

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func TestIsOurs(t *testing.T) {
	boot, err := bootID()
	if err != nil {
		t.Fatal(err)
	}
	p := newPaths(t.TempDir(), "")
	if err := os.MkdirAll(p.bundles, 0o755); err != nil {
		t.Fatal(err)
	}
	stat := func(start string) string {
		return "7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 9 0 " + start + " 1 2 3"
	}
	good := record{PID: 7, StartTime: 4711, BootID: boot}
	for name, c := range map[string]struct {
		files  map[string]string
		change func(*record)
		want   bool
	}{
		"the one":         {map[string]string{"stat": stat("4711"), "exe": p.bundles + "/x/bin/containerd"}, func(*record) {}, true},
		"removed bundle":  {map[string]string{"stat": stat("4711"), "exe": p.bundles + "/x/bin/containerd (deleted)"}, func(*record) {}, true},
		"started later":   {map[string]string{"stat": stat("4712"), "exe": p.bundles + "/x/bin/containerd"}, func(*record) {}, false},
		"another boot":    {map[string]string{"stat": stat("4711"), "exe": p.bundles + "/x/bin/containerd"}, func(r *record) { r.BootID = "x" }, false},
		"another program": {map[string]string{"stat": stat("4711"), "exe": "/usr/bin/containerd"}, func(*record) {}, false},
		"our shim":        {map[string]string{"stat": stat("4711"), "exe": p.bundles + "/x/bin/containerd-shim-runc-v2"}, func(*record) {}, false},
		"zombie":          {map[string]string{"stat": stat("4711")}, func(*record) {}, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := good
			c.change(&r)
			got, err := isOurs(p, fakeProc(t, map[string]map[string]string{"7": c.files}), r)
			if err != nil || got != c.want {
				t.Errorf("got %v, error %v; want %v", got, err, c.want)
			}
		})
	}
	if got, err := isOurs(p, t.TempDir(), good); got || err != nil {
		t.Errorf("a process that is gone: %v, error %v", got, err)
	}
}

func TestSameAs(t *testing.T) {
	running := record{PID: 7, Bundle: "b", Config: "c"}
	for name, c := range map[string]struct {
		other record
		want  bool
	}{
		"same":           {record{Bundle: "b", Config: "c"}, true},
		"another bundle": {record{Bundle: "x", Config: "c"}, false},
		"another config": {record{Bundle: "b", Config: "x"}, false},
	} {
		if got := running.sameAs(c.other); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// sleeper starts a process that does nothing, and buries it when the test ends.
func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

func hold(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	c, err := openProcess(cmd.Process.Pid, func() (bool, error) { return true, nil })
	if err != nil || c == nil {
		t.Fatalf("open process: %v, %v", c, err)
	}
	return c
}

func TestProcessWait(t *testing.T) {
	c := hold(t, sleeper(t))
	given, cancel := context.WithCancel(t.Context())
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { _, err := c.wait(given); first <- err }()
	go func() { _, err := c.wait(t.Context()); second <- err }()
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("wait whose context was cancelled: %v", err)
	}
	if err := c.terminate(t.Context(), time.Minute); err != nil {
		t.Errorf("end: %v", err)
	}
	if err := <-second; err != nil {
		t.Errorf("wait until the end: %v", err)
	}
	if err := c.terminate(t.Context(), time.Minute); err != nil {
		t.Errorf("end of what has ended: %v", err)
	}
	if err := errors.Join(c.close(), c.close()); err != nil {
		t.Errorf("close: %v", err)
	}
	if _, err := c.wait(t.Context()); err != nil {
		t.Errorf("wait for what was let go of: %v", err)
	}
}

func TestProcessInsists(t *testing.T) {
	cmd := exec.Command("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 600; done")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	c := hold(t, cmd)
	c.child = cmd
	if err := c.terminate(t.Context(), time.Millisecond); err != nil {
		t.Fatal(err)
	}
	how, err := c.wait(t.Context())
	if err != nil || !strings.Contains(how, "killed") {
		t.Errorf("ended %q, error %v; want it killed", how, err)
	}
	if err := c.close(); err != nil {
		t.Error(err)
	}
}

func TestFindProcessNone(t *testing.T) {
	p := newPaths(t.TempDir(), t.TempDir())
	for name, content := range map[string]string{
		"corrupt record":  "{",
		"another process": `{"version":1,"pid":1,"startTime":1,"bootID":"x"}`,
		"no process":      `{"version":1,"pid":0}`,
	} {
		if err := os.WriteFile(p.record, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := findProcess(p); got != nil || err != nil {
			t.Errorf("%s: %v, error %v; want none", name, got, err)
		}
	}
}

func TestNextDelay(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct{ last, uptime, want time.Duration }{
		{0, time.Hour, 0},
		{0, time.Second, 100 * ms},
		{100 * ms, time.Second, 200 * ms},
		{6400 * ms, 0, 10 * time.Second},
		{10 * time.Second, 0, 10 * time.Second},
		{10 * time.Second, time.Minute, 0},
	} {
		if got := nextDelay(c.last, c.uptime); got != c.want {
			t.Errorf("nextDelay(%s, %s) = %s, want %s", c.last, c.uptime, got, c.want)
		}
	}
}

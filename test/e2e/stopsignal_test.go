//go:build e2e

package e2e

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
)

// noSignals are stop signals of images that are none, by a name for their pods. containerd does not
// parse the first two, and cannot send the last.
var noSignals = map[string]string{"word": "SIGFOO; rm", "zero": "0", "minus": "-1"}

// signalled is a pod of one container, main, of an image, and with a grace period in seconds; more
// are lines of the container.
func signalled(name, image string, grace int, more string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: %d
  containers:
  - name: main
    image: %s
%s`, name, grace, image, more)
}

const (
	obeying = "    args: [sleep]\n"
	unwell  = "    args: [sleep]\n    livenessProbe: {tcpSocket: {port: 9}, initialDelaySeconds: 5, periodSeconds: 1, failureThreshold: 1}\n"
)

// An image whose stop signal is none has containers that end all the same: on SIGTERM, and those
// that are deaf to it with their grace period. So it is when the manifest goes, when a liveness
// probe fails, and with berth stop --all.
func TestStopSignalThatIsNone(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	a := n.start()
	r := newRegistry(t, httptest.NewServer)
	var names []string
	for name, signal := range noSignals {
		image := r.pushStopSignal(n, "stop/"+name, signal)
		n.write(name+".yaml", signalled(name, image, 600, obeying))
		n.write(name+"-unwell.yaml", signalled(name+"-unwell", image, 600, unwell))
		n.write(name+"-last.yaml", signalled(name+"-last", image, 600, obeying))
		names = append(names, name, name+"-last")
	}
	now := n.awaitReady(names...)
	for name, signal := range noSignals {
		n.remove(name + ".yaml")
		n.awaitGone(now.named(name).UID)
		entries := n.explain(name)
		wantInOrder(t, entries, "main InvalidStopSignal", "main container stopped")
		if e := entryOf(t, entries, "main", "InvalidStopSignal"); signal != "-1" && !strings.Contains(e.Error, signal) {
			t.Errorf("the stop signal %q is told of as %q", signal, e.Error)
		}
	}
	for name := range noSignals {
		n.await(name+"-unwell to be started again", func(p pods) bool {
			s := container(p.named(name+"-unwell"), "main")
			return s.RestartCount > 0 && s.LastTerminationState.Terminated != nil && s.LastTerminationState.Terminated.ExitCode == 0
		})
	}
	wantText(t, "berth stop --all", n.berth("stop", "--all"), "have ended")
	if code := a.wait(); code != 0 {
		t.Errorf("exit code %d, want 0:\n%s", code, a.said())
	}
	if left, err := n.place.processes(); err != nil || len(left) > 0 {
		t.Errorf("processes %v are left, error %v", left, err)
	}
}

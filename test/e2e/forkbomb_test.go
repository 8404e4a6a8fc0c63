//go:build e2e

package e2e

import (
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// A fork bomb stays in its pod, within podPidsLimit: other pods go on, new ones start, and the bomb
// ends with its pod.
func TestForkBombStaysWithinItsPod(t *testing.T) {
	const limit = 100
	n := newNode(t)
	n.write("steady.yaml", manifest("steady", "serve"))
	// The shell itself forks nothing after the bomb has begun, so that it is there to be told to
	// end.
	n.put(n.act("bomb", v1.RestartPolicyNever, nil, bounded(actor("main", `
mkfifo /shared/hold && exec 3<>/shared/hold
trap "say asked; exit 0" TERM
say began
until test -e /shared/go; do sleep 0.1; done
bomb() { bomb | bomb & }
while :; do bomb; read -r line <&3; done
`), "", "200m 256Mi")))
	a := n.startConfigured("podPidsLimit: " + strconv.Itoa(limit) + "\n")
	n.awaitStory("bomb", "main began")
	now := n.awaitReady("steady-n1", "bomb-n1")
	bomb, steady := now.named("bomb-n1"), now.named("steady-n1")
	processes := func() int {
		count, err := strconv.Atoi(n.podCgroup(bomb, "pids.current", "pids.current"))
		if err != nil {
			t.Fatal(err)
		}
		return count
	}
	if got := n.podCgroup(bomb, "pids.max", "pids.max"); got != strconv.Itoa(limit) {
		t.Fatalf("the pod may have %s processes; without a limit the bomb is not lit", got)
	}

	n.mark("bomb", "go")
	n.awaitLog("bomb-n1", "Cannot fork")
	n.write("later.yaml", manifest("later", "serve"))
	n.awaitReady("later-n1")
	answers(t, "http://"+steady.Status.PodIP+":8080/")
	if got := processes(); got > limit {
		t.Errorf("the pod has %d processes", got)
	}

	n.remove("bomb.yaml")
	n.awaitGone(bomb.UID)
	for _, dir := range n.place.cgroupTree() {
		if strings.Contains(dir, string(bomb.UID)) {
			t.Errorf("the pod is gone, and its cgroup %s is not", dir)
		}
	}
	wantUntouched(t, n, steady)
	a.end(unix.SIGTERM)
}

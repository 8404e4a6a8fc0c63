//go:build e2e && vm

package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// When the machine loses its power while pods come and go, nothing of what the agent and the
// runtime have on the disk keeps them from starting: the pods of all manifests run again, and a new
// one does. BERTH_POWER_CUTS says how often, 3 times unless it is set; each is at a random moment.
//
// It is the last test of its run, as it ends the machine under whatever else runs.
func TestVMWithoutPower(t *testing.T) {
	n, back := newRebootNode(t, "without-power")
	u := n.unit("berth-without-power.service")
	if !back {
		n.writesSteady()
		u = n.writeUnit(u.name, n.newAgent().cmd.Args...)
		systemctl(t, "enable", "--now", u.name)
		u.awaitAnswer(0)
		n.awaitReady(poweredPods...)
		askForReboot(t)
		return
	}
	cuts := 3
	if text := os.Getenv("BERTH_POWER_CUTS"); text != "" {
		var err error
		if cuts, err = strconv.Atoi(text); err != nil {
			t.Fatalf("BERTH_POWER_CUTS: %v", err)
		}
	}
	done := len(glob(n.place.Dir + "/cut.*"))
	u.awaitAnswer(0)
	n.runsAfterACut(done)
	if done < cuts {
		n.cutPower(done)
	}
	n.sweepReboot(u.remove)
	n.berth("stop", "--all")
	n.wantNothingRuns()
}

// poweredPods are the pods that are there all the time.
var poweredPods = []string{"steady-0", "steady-1", "steady-2"}

func (n *node) writesSteady() {
	n.t.Helper()
	must(n.t, os.MkdirAll(n.manifests(), 0o755))
	for _, name := range poweredPods {
		n.write(name+".yaml", manifest(name, "serve"))
	}
}

// runsAfterACut waits for all that is to run since the machine was started, and for a new pod.
func (n *node) runsAfterACut(cuts int) {
	n.t.Helper()
	boot := bootTime(n.t)
	fresh := fmt.Sprintf("fresh-%d", cuts)
	n.write(fresh+".yaml", manifest(fresh, "serve"))
	wanted := append([]string{fresh}, poweredPods...)
	n.await(fmt.Sprintf("cut %d: all pods to run since the machine was started", cuts), func(p pods) bool {
		for _, name := range wanted {
			if !p.ready(name) || container(p.named(name), "main").State.Running.StartedAt.Time.Before(boot) {
				return false
			}
		}
		return true
	})
	for _, file := range append(glob(n.manifests()+"/fresh-*"), glob(n.manifests()+"/passing-*")...) {
		n.remove(filepath.Base(file))
	}
	n.awaitOnly(poweredPods)
	n.t.Logf("after %d cuts everything runs", cuts)
}

// cutPower has pods come and go, and then ends the machine from one moment to the next. It does not
// return.
func (n *node) cutPower(cuts int) {
	t := n.t
	t.Helper()
	// What is needed to go on afterwards is on the disk before.
	f, err := os.Create(fmt.Sprintf("%s/cut.%d", n.place.Dir, cuts))
	must(t, err, f.Sync(), f.Close())
	ask := os.Getenv("BERTH_REBOOT")
	must(t, os.WriteFile(ask, []byte("^"+t.Name()+"$"), 0o644))
	for _, command := range [][]string{
		{"sync"},
		{"tar", "-C", filepath.Dir(ask), "-cf", "/dev/disk/by-id/virtio-out", filepath.Base(ask)},
		{"sync", "/dev/disk/by-id/virtio-out"},
	} {
		if out, err := exec.CommandContext(n.ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", command, err, out)
		}
	}
	lasts := time.Duration(2+rand.IntN(28)) * time.Second
	t.Logf("the power goes in %v", lasts)
	cut := time.After(lasts)
	for i := 0; ; i++ {
		select {
		case <-cut:
			// At once: nothing that the kernel still holds is written.
			must(t, os.WriteFile("/proc/sysrq-trigger", []byte("b"), 0o200))
			select {}
		case <-time.After(time.Duration(rand.IntN(1500)) * time.Millisecond):
		}
		name := fmt.Sprintf("passing-%d.yaml", i%4)
		if _, err := os.Stat(filepath.Join(n.manifests(), name)); err == nil {
			n.remove(name)
		} else {
			n.write(name, manifest(fmt.Sprintf("passing-%d", i%4), "serve"))
		}
	}
}

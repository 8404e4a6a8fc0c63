package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth/internal/cgroups"
	"berth/internal/cri"
	"berth/internal/pod"
	"berth/internal/podworkers"
)

// How long the end of all pods may take.
const (
	// drainLimit is the longest usual grace period twice, and time to clean up.
	drainLimit = 90 * time.Second
	// shortGrace is the grace period in seconds of what runs on then, and hurriedLimit the time for its end.
	shortGrace   int64 = 1
	hurriedLimit       = 15 * time.Second
	// settleLimit is how long workers have to see that what ran on was killed by its cgroup.
	settleLimit = 5 * time.Second
)

// drainPods ends every pod when the agent is not to leave any behind: those of its workers, and what
// the runtime and the disk have besides. What has not ended after drainLimit has no more patience
// coming, whatever its grace period is; what runs on after that is killed by the cgroup, without the
// runtime. The error names what is left all the same.
func (a *Agent) drainPods(ctx context.Context) error {
	if a.Exit() == KeepPods {
		return nil
	}
	for _, p := range a.pods.List() { // the loop, which owns them, has stopped
		a.pods.Remove(p)
	}
	patient, cancel := context.WithTimeout(ctx, drainLimit)
	defer cancel()
	a.workers.SyncKnownPods(nil)
	a.workers.WakeAll() // also those that wait to try a removal again
	unlisted := a.endLeftovers(patient)
	ending := a.workers.All()
	containers := a.containerNames()
	if !a.awaitWorkers(patient) {
		a.cfg.Log.Warn("pods have not ended, and are forced", "limit", drainLimit, "pods", a.workers.Len())
		a.forcePods(ctx, ending)
	}
	a.left = a.whatIsLeft(ending, containers)
	if len(a.left) > 0 {
		return errors.Join(leftError(a.left), unlisted)
	}
	return unlisted
}

// endLeftovers ends what the runtime and the disk have besides the pods of workers. The error says that
// the runtime does not tell.
func (a *Agent) endLeftovers(ctx context.Context) error {
	select {
	case <-a.pleg.Relisted():
	case <-ctx.Done():
		return fmt.Errorf("the runtime did not list its pods within %s: %w", drainLimit, a.pleg.Health())
	}
	for _, s := range a.leftovers() {
		if !a.workers.Has(s.UID) {
			a.killWithin(s, longestGrace(s))
		}
	}
	return nil
}

// killWithin has a worker end what the runtime has of a pod within the grace period in seconds, or in
// less, if it is ending already.
func (a *Agent) killWithin(s *pod.Status, grace int64) {
	a.workers.UpdatePod(podworkers.UpdatePodOptions{
		UpdateType: podworkers.SyncPodKill, RunningPod: s,
		KillPodOptions: &podworkers.KillPodOptions{PodTerminationGracePeriodSecondsOverride: &grace},
	})
}

// awaitWorkers waits until the workers have left, and reports false when ctx is done before.
func (a *Agent) awaitWorkers(ctx context.Context) bool {
	for a.workers.Len() > 0 {
		select {
		case <-a.workers.Finished().Wake():
			a.workers.Finished().Take()
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// forcePods ends pods that have had their time.
func (a *Agent) forcePods(ctx context.Context, uids []pod.UID) {
	for _, uid := range uids {
		if s, known := a.pleg.Newest(uid); known && a.workers.Has(uid) {
			a.killWithin(s, shortGrace)
		}
	}
	hurried, cancel := context.WithTimeout(ctx, hurriedLimit)
	defer cancel()
	if a.awaitWorkers(hurried) {
		return
	}
	for _, uid := range uids {
		if !a.workers.Has(uid) {
			continue
		}
		if err := a.facts.KillPod(ctx, uid); err != nil {
			a.cfg.Log.Warn("pod not killed by its cgroup", "uid", uid, "error", err)
		}
		a.workers.WakePod(uid)
	}
	settling, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	a.awaitWorkers(settling)
}

// whatIsLeft names, a line each, the processes of the pods that still run, what the runtime shows as
// running, and the pods that are not removed for another reason.
func (a *Agent) whatIsLeft(uids []pod.UID, containers map[pod.ContainerID]string) []string {
	var out []string
	for _, uid := range uids {
		name := a.nameOf(uid)
		running, err := a.facts.Processes(uid)
		if err != nil {
			out = append(out, fmt.Sprintf("%s: %v", name, err))
		}
		for _, p := range running {
			out = append(out, fmt.Sprintf("%s%s: process %d (%s)", name, ofContainer(p, containers), p.PID, p.Command))
		}
		if len(running) > 0 || isReadOnly(a.cfg.RootDir) { // then neither runtime nor disk can forget what has ended
			continue
		}
		if s, known := a.pleg.Newest(uid); known {
			for i := range s.Containers {
				if cs := &s.Containers[i]; cs.State == pod.StateRunning {
					out = append(out, fmt.Sprintf("%s, container %s: it runs, says the runtime", name, cs.Name))
				}
			}
		}
		if a.workers.Has(uid) {
			out = append(out, fmt.Sprintf("%s: not removed: %s", name, a.lastError(uid)))
		}
	}
	return out
}

func ofContainer(p cgroups.Process, names map[pod.ContainerID]string) string {
	switch name := names[p.Container]; {
	case name != "":
		return ", container " + name
	case p.Container != "":
		return ", container " + string(p.Container)
	}
	return ""
}

// containerNames returns the names of all containers that the runtime has.
func (a *Agent) containerNames() map[pod.ContainerID]string {
	out := map[pod.ContainerID]string{}
	for _, s := range a.pleg.Known() {
		for i := range s.Containers {
			out[s.Containers[i].ID] = s.Containers[i].Name
		}
	}
	return out
}

// nameOf names a pod for users.
func (a *Agent) nameOf(uid pod.UID) string {
	if s, ok := a.journal.SubjectOf(uid); ok && s.Name != "" {
		return "pod " + s.Namespace + "/" + s.Name
	}
	return "pod of UID " + string(uid)
}

// lastError is what kept a pod from its end, as its journal says.
func (a *Agent) lastError(uid pod.UID) string {
	story, _ := a.journal.StoryOf(uid)
	for _, e := range slices.Backward(story.Entries) {
		if e.Error != "" {
			return e.Error
		}
	}
	return "its end takes longer"
}

// leftError says what is left of pods that were to end, and what to do.
func leftError(left []string) error {
	return fmt.Errorf("not all has ended:\n  %s\nEnd the processes, or what they wait for, and run \"berth stop --all\" again",
		strings.Join(left, "\n  "))
}

// noteEnded leaves to who asked for the end of all pods, and to the next agent, whether there is something left.
func (a *Agent) noteEnded() error {
	if len(a.left) > 0 {
		return a.saveConfig()
	}
	if err := os.Remove(filepath.Join(a.cfg.RunDir, lastFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// longestGrace returns the longest grace period in seconds that the pod's containers were made with.
func longestGrace(s *pod.Status) int64 {
	grace := int64(1)
	for i := range s.Containers {
		if g, ok := cri.TerminationGrace(&s.Containers[i]); ok {
			grace = max(grace, g)
		}
	}
	return grace
}

package drain

import (
	"fmt"
	"slices"
	"strings"

	"berth/internal/host/cgroups"
	"berth/internal/pod"
)

// Left lists what remains of the pods, one line each.
type Left []string

// Err returns what remains and the remedy, or nil if nothing remains.
func (l Left) Err() error {
	if len(l) == 0 {
		return nil
	}
	return fmt.Errorf("not all has ended:\n  %s\nEnd the processes, or what they wait for, and run \"berth stop --all\" again",
		strings.Join(l, "\n  "))
}

// Left returns what remains.
func (d *Drain) Left() Left { return d.left }

// Add adds an error that prevented the termination of something other than a pod.
func (d *Drain) Add(err error) { d.left = append(d.left, err.Error()) }

// whatIsLeft lists the pods' running processes, the containers that the runtime reports as running,
// and the pods that are not removed for another reason.
func (d *Drain) whatIsLeft(uids []pod.UID, containers map[pod.ContainerID]string) Left {
	var out Left
	for _, uid := range uids {
		name := d.nameOf(uid)
		running, err := d.Cgroups.Processes(uid)
		if err != nil {
			out = append(out, fmt.Sprintf("%s: %v", name, err))
		}
		for _, p := range running {
			out = append(out, fmt.Sprintf("%s%s: process %d (%s)", name, ofContainer(p, containers), p.PID, p.Command))
		}
		if len(running) > 0 || d.ReadOnly() {
			continue
		}
		if s, known := d.Observed.Newest(uid); known {
			for i := range s.Containers {
				if cs := &s.Containers[i]; cs.State == pod.StateRunning {
					out = append(out, fmt.Sprintf("%s, container %s: it runs, says the runtime", name, cs.Name))
				}
			}
		}
		if d.Workers.Has(uid) {
			out = append(out, fmt.Sprintf("%s: not removed: %s", name, d.lastError(uid)))
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

func (d *Drain) containerNames() map[pod.ContainerID]string {
	out := map[pod.ContainerID]string{}
	for _, s := range d.Observed.Known() {
		for i := range s.Containers {
			out[s.Containers[i].ID] = s.Containers[i].Name
		}
	}
	return out
}

// nameOf returns the pod's name for users.
func (d *Drain) nameOf(uid pod.UID) string {
	if s, ok := d.Journal.SubjectOf(uid); ok && s.Name != "" {
		return "pod " + s.Namespace + "/" + s.Name
	}
	return "pod of UID " + string(uid)
}

func (d *Drain) lastError(uid pod.UID) string {
	story, _ := d.Journal.TimelineOf(uid)
	for _, e := range slices.Backward(story.Entries) {
		if e.Error != "" {
			return e.Error
		}
	}
	return "its end takes longer"
}

package explain

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/internal/record/journal"
)

func stillRunning(f *facts) string {
	var running []string
	for _, cs := range f.statuses() {
		if cs.State.Running != nil {
			running = append(running, fmt.Sprintf("%q%s", cs.Name, preStopText(f, cs.Name)))
		}
	}
	if len(running) == 0 {
		return ""
	}
	return " Still running: " + strings.Join(running, ", ") + "."
}

// mountedVolumes reports that a pod whose containers have exited waits for a CSI driver.
func mountedVolumes(f *facts) string {
	if stillRunning(f) != "" || !waitsForVolume(f) {
		return ""
	}
	return " Its containers have ended, and a CSI driver has not taken its volumes down yet."
}

// repeatedRequest describes the termination of a pod that was requested more than once.
func repeatedRequest(f *facts) string {
	text, grace, first := "", "", time.Time{}
	for _, e := range f.timeline.Entries {
		switch {
		case e.Subject.UID != f.timeline.Subject.UID:
		case e.Decision == "end the pod" && first.IsZero():
			first = e.Time
		case e.Decision == "end the pod":
			text = fmt.Sprintf(" It has been ending since %s; the agent restarted at %s, and the grace period began again.", f.at(first), f.at(e.Time))
		case e.Decision == "deletion asked for":
			_, next, _ := strings.Cut(e.Why, "grace period ")
			if grace != "" && next != grace {
				text = fmt.Sprintf(" Its deletion was requested again at %s, with a grace period of %s.", f.at(e.Time), OneLine(next))
			}
			grace = next
		}
	}
	return text
}

func finalizers(f *facts) string {
	if f.pod.DeletionTimestamp == nil || len(f.pod.Finalizers) == 0 {
		return ""
	}
	return fmt.Sprintf(" It is deleted, and the API server keeps it for its finalizers: %s.", strings.Join(f.pod.Finalizers, ", "))
}

func failure(f *facts) string {
	st := &f.pod.Status
	if st.Phase != v1.PodFailed || st.Reason == "" {
		return ""
	}
	text := strings.TrimSuffix(OneLine(joinNonEmpty(": ", st.Reason, st.Message)), ".")
	preemptor := inUnits(f, strings.Replace(f.why("end the pod to make room"), ": critical pod", "", 1))
	return fmt.Sprintf(" %s%s.%s", text, cmp.Or(deadline(f), preemptor, excess(f)), evictionChoice(f))
}

func deadline(f *facts) string {
	p := f.pod
	if p.Status.Reason != "DeadlineExceeded" || p.Spec.ActiveDeadlineSeconds == nil || p.Status.StartTime == nil {
		return ""
	}
	return fmt.Sprintf(": activeDeadlineSeconds is %d, and the pod was active from %s on", *p.Spec.ActiveDeadlineSeconds, f.at(p.Status.StartTime.Time))
}

var (
	// choice matches the decision to evict a pod because of a node resource; it begins with the
	// threshold.
	choice = regexp.MustCompile(`^(\S+<\S+): .*Chosen: (.*)\. Read at (\S+)\.(?: Met since (\S+), for its grace period of (\S+)\.)?$`)
	// usedBytes matches the used bytes at the end of an eviction for a local storage limit.
	usedBytes = regexp.MustCompile(`\b(\d+) bytes are used$`)
)

// evicted returns the newest eviction whose inputs match, and their submatches.
func evicted(f *facts, inputs func(e *journal.Entry) []string) (*journal.Entry, []string) {
	e := f.last(func(e *journal.Entry) bool { return from("eviction", "evict the pod")(e) && inputs(e) != nil })
	if e == nil {
		return nil, nil
	}
	return e, inputs(e)
}

func evictionChoice(f *facts) string {
	_, m := evicted(f, func(e *journal.Entry) []string { return choice.FindStringSubmatch(OneLine(e.Why)) })
	if m == nil {
		return ""
	}
	read, err := time.Parse(time.RFC3339, m[3])
	if err != nil {
		return ""
	}
	kind := "The hard threshold"
	if since, err := time.Parse(time.RFC3339, m[4]); err == nil {
		kind = fmt.Sprintf("For its grace period of %s, since %s, the soft threshold", m[5], f.at(since))
	}
	return fmt.Sprintf(" %s %s was met, read at %s. This pod was chosen: %s.", kind, m[1], f.at(read), m[2])
}

func excess(f *facts) string {
	e, m := evicted(f, func(e *journal.Entry) []string { return usedBytes.FindStringSubmatch(e.Why) })
	if m == nil {
		return ""
	}
	used, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil {
		return ""
	}
	return fmt.Sprintf(": %s were used when it was measured at %s", ByteSize(used), f.at(e.Time))
}

// refused returns why the node refused the pod: in human-readable units, from the decision, or from
// its status.
func refused(f *facts) string {
	refusal, ok := strings.CutPrefix(f.pod.Status.Message, "Pod was rejected: ")
	if !ok {
		return ""
	}
	text := cmp.Or(shortageIn(refusal), topologyRefusal(f), strings.TrimPrefix(f.why("refuse the pod"), ": "), OneLine(refusal))
	cpus := f.note(from("cpus", "refuse *"), func(e *journal.Entry) string {
		why, _, _ := strings.Cut(e.Why, "; shared CPUs")
		return fmt.Sprintf(" (container %q: %s)", e.Container, OneLine(why))
	})
	return fmt.Sprintf("was refused by this node (%s): %s%s.", f.pod.Status.Reason, strings.TrimSuffix(text, "."), cpus)
}

// placements describes the placement that topology manager policies require.
var placements = map[string]string{
	"single-numa-node": "on one NUMA node",
	"restricted":       "on as few NUMA nodes as could have it",
}

func topologyRefusal(f *facts) string {
	return f.note(from("topology", "refuse: *"), func(e *journal.Entry) string {
		who := "it"
		if e.Container != "" {
			who = fmt.Sprintf("container %q", e.Container)
		}
		policy, hints, _ := strings.Cut(strings.TrimPrefix(e.Why, "policy "), "; ")
		hints, _, _ = strings.Cut(hints, "; merged ")
		hints = strings.NewReplacer(", else {", ", not as well on {", " else {", " not well on {", " {", " on {").Replace(hints)
		return fmt.Sprintf("%s cannot have all that it asks for %s, as the topology policy %s wants; there is %s", who, placements[policy], policy, OneLine(hints))
	})
}

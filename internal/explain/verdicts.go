package explain

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"berth/internal/pod"
	"berth/internal/pod/lifecycle"
	"berth/internal/source/manifest"
)

// Verdict names the state that an Answer explains: a row of the table of verdicts.
type Verdict string

// fragment is a part of a text; "" where it has nothing to say.
type fragment func(*facts) string

// format renders a template with fragments.
func format(template string, args ...fragment) fragment {
	return func(f *facts) string {
		values := make([]any, len(args))
		for i, arg := range args {
			values[i] = arg(f)
		}
		return fmt.Sprintf(template, values...)
	}
}

// with adds fragments to a text unless that is empty.
func with(text fragment, more ...fragment) fragment {
	return func(f *facts) string {
		s := text(f)
		for i := 0; i < len(more) && s != ""; i++ {
			s += more[i](f)
		}
		return s
	}
}

// waits renders the cause for which a pod waits, as one sentence.
func waits(template string, args ...fragment) fragment {
	return with(func(f *facts) string { return sentence(format(template, args...)(f)) }, recentRestarts)
}

// notReady is waits of a pod whose containers run.
func notReady(template string, args ...fragment) fragment {
	return with(func(f *facts) string { return sentence(format(template, args...)(f)) }, restarts, recentRestarts)
}

// verdicts has the state of a pod or a manifest: the first row that holds, and has a text.
var verdicts = []struct {
	verdict Verdict
	is      func(*facts) bool
	text    fragment
}{
	{"ManifestRejected", and(isManifest, hasErrors), format("is refused: %s", problems)},
	{"ManifestWarning", and(isManifest, hasProblems), format("is accepted, with a warning: %s", problems)},
	{"ManifestAccepted", isManifest, format("has no problem now.")},

	{"Removed", and(isRemoved, hasNoEntries), format("is gone.")},
	{"ManifestRejected", and(isRemoved, lastRefused), format("does not exist: its manifest is refused: %s", lastError)},
	{"Removed", isRemoved, format("is gone since %s%s.", lastTime, why("end the pod"))},

	{"Unscheduled", isUnbound, unboundText},
	{"Quarantined", isQuarantined, format("is set aside%s. Its containers go on, and nothing is done for it until its spec changes or `berth release %s` lets go of it. The crash: %s", crashes, podName, crash)},
	{"Succeeded", phase(v1.PodSucceeded), format("has completed: all its containers ended with code 0.%s", finalizers)},
	{"Rejected", hasFailed, with(refused, finalizers)},
	{"Failed", hasFailed, with(failedFor, finalizers)},
	{"Failed", hasFailed, with(failedContainer, finalizers)},
	{"Failed", hasFailed, format("has failed.%s", finalizers)},
	{"Terminating", isTerminating, format("is ending%s.%s%s%s%s%s", why("end the pod"), failure, repeatedRequest, stillRunning, mountedVolumes, finalizers)},
	{"Restarting", always, stoppingText},

	{"Initializing", sidecarStarts, waits("is initializing: sidecar %q has not passed its startup probe yet%s", container, probeOf("startup"))},
	{"Initializing", initRuns, waits("is initializing: init container %q runs%s, number %s.%s", container, initSince, initNumber, pulls)},
	{"NotReady", hasExited, waits("is not ready: %s.", exitOf)},
	{"Starting", hasNoCause, waits("%s", starting)},
	{"CrashLoop", waitsFor(lifecycle.CrashLoopBackOff), waits("is waiting: container %q is in a crash loop, with %s so far%s.", container, restartCount, crashLoopExit)},
	{"NoImage", waitsFor(lifecycle.ErrImagePull, lifecycle.ImagePullBackOff, lifecycle.ErrImageNeverPull, lifecycle.InvalidImageName, lifecycle.ImageInspectError), waits("%s", imageText)},
	{"NotStarted", isBlocked, waits("is waiting: container %q cannot be started (%s): %s%s", container, waitingReason, waitingMessage, rootUser)},

	{"Ready", isReady, format("is ready%s.%s%s%s%s%s", readySince, failingText, restarts, resize, otherProblems, recentRestarts)},
	{"NotReady", unready(startupPending), notReady("runs and is not ready: container %q has not passed its startup probe yet%s", container, probeOf("startup"))},
	{"NotReady", unready(hasReadinessProbe), notReady("runs and is not ready: the readiness probe of container %q does not succeed%s", container, probeOf("readiness"))},
	{"NotReady", unready(func(*facts, *v1.ContainerStatus) bool { return true }), notReady("runs and is not ready: container %q is not ready.", container)},
	{"NotReady", hasOpenGate, notReady("runs and is not ready: the condition %q of its readiness gates %s; controllers set it, and not this node.", gate, gateState)},
	{"NotReady", hasReadyReason, notReady("is not ready: %s", readyReason)},
	{"Starting", always, notReady("%s", starting)},
}

// decide returns the verdict and its text, which begins with the subject.
func decide(f *facts) (Verdict, string) {
	subject := f.timeline.Subject
	name := "Pod " + subject.Namespace + "/" + subject.Name
	if isManifest(f) {
		name = "Manifest " + subject.Name
	} else if f.pod != nil {
		name = "Pod " + podName(f)
	}
	for _, row := range verdicts {
		if !row.is(f) {
			continue
		}
		if text := row.text(f); text != "" {
			return row.verdict, name + " " + text
		}
	}
	return "", name
}

// condition is a condition of a row. Those about a manifest or a removed pod hold without a pod,
// the others are asked with one.
type condition func(*facts) bool

func and(a, b condition) condition { return func(f *facts) bool { return a(f) && b(f) } }

func always(*facts) bool { return true }

func isManifest(f *facts) bool   { return f.timeline.Subject.Namespace == "" }
func hasProblems(f *facts) bool  { return len(f.Problems) > 0 }
func hasErrors(f *facts) bool    { return slices.ContainsFunc(f.Problems, isError) }
func isRemoved(f *facts) bool    { return f.pod == nil }
func hasNoEntries(f *facts) bool { return len(f.timeline.Entries) == 0 }
func lastRefused(f *facts) bool  { return lastEntry(f).Decision == "manifest refused" }

func isError(p manifest.Problem) bool { return p.Severity == manifest.SeverityError }

func isUnbound(f *facts) bool {
	return f.Unbound != nil && f.pod != nil && f.pod.UID == f.Unbound.UID
}

func isQuarantined(f *facts) bool { return f.Quarantined[f.pod.UID] != "" }
func isTerminal(f *facts) bool    { return pod.IsTerminal(f.pod.Status.Phase) }
func isReady(f *facts) bool       { return lifecycle.IsTrue(f.pod, v1.PodReady) }

func phase(p v1.PodPhase) condition { return func(f *facts) bool { return f.pod.Status.Phase == p } }

// hasFailed reports whether the pod has failed and no container of it runs.
func hasFailed(f *facts) bool { return phase(v1.PodFailed)(f) && stillRunning(f) == "" }

// isTerminating reports whether the pod terminates, deleted at the API server or by the agent.
func isTerminating(f *facts) bool {
	e := f.lastSince(from("", "accepted"), from("", "end the pod"))
	return f.pod.DeletionTimestamp != nil || phase(v1.PodFailed)(f) || e != nil && e.Subject.UID == f.pod.UID
}

func isBlocked(f *facts) bool { return f.blocking != nil }
func hasExited(f *facts) bool { return isBlocked(f) && f.blocking.State.Terminated != nil }
func initRuns(f *facts) bool  { return isBlocked(f) && f.blocking.State.Running != nil }

func sidecarStarts(f *facts) bool { return initRuns(f) && lifecycle.HasSidecar(f.pod, f.blocking.Name) }

func waitsFor(reasons ...string) condition {
	return func(f *facts) bool {
		return isBlocked(f) && f.blocking.State.Waiting != nil && slices.Contains(reasons, f.blocking.State.Waiting.Reason)
	}
}

// hasNoCause reports whether nothing is known to keep the pod from starting.
func hasNoCause(f *facts) bool {
	if !isBlocked(f) {
		return len(f.pod.Status.ContainerStatuses) == 0
	}
	return f.blocking.State.Waiting == nil || waitsFor("", lifecycle.ContainerCreating, lifecycle.PodInitializing)(f)
}

// unready makes a condition of one of the first container that is not ready.
func unready(is func(*facts, *v1.ContainerStatus) bool) condition {
	return func(f *facts) bool { return f.unready != nil && is(f, f.unready) }
}

func hasOpenGate(f *facts) bool { return openGate(f) != "" }

func openGate(f *facts) v1.PodConditionType {
	for _, g := range f.pod.Spec.ReadinessGates {
		if !lifecycle.IsTrue(f.pod, g.ConditionType) {
			return g.ConditionType
		}
	}
	return ""
}

func hasReadyReason(f *facts) bool { return f.condition(v1.PodReady).Reason != "" }

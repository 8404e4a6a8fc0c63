package main

import (
	"fmt"
	"slices"
	"time"

	"berth/internal/api/server"
)

// lastingWaits returns the calls for the pod that are unanswered for at least slowCall.
func (s explainer) lastingWaits() []server.Wait {
	return slices.DeleteFunc(slices.Clone(s.e.Waits), func(w server.Wait) bool {
		return s.pod == nil || w.Pod != s.pod.UID || s.now.Sub(w.Since) < slowCall
	})
}

// waitsForVolume reports whether a CSI driver or a volume's server is slow to answer a call for the
// pod.
func (s explainer) waitsForVolume() bool {
	return slices.ContainsFunc(s.lastingWaits(), func(w server.Wait) bool { return w.Driver != "" || w.From != "" })
}

// waitText describes an unanswered call: since when, and what follows.
func (s coming) waitText(w server.Wait) string {
	who, call, then := "the container runtime", callName(w.Call), "until then nothing else is done for the pod"
	if w.Driver != "" {
		who, call, then = "the CSI driver "+w.Driver, w.Call, "the call is given up then, and made again later"
	}
	switch {
	case w.From != "":
		who, then = w.From, "the try is given up then, and the next one follows 10 to 15 s later"
		call = fmt.Sprintf("%s for volume %q", oneLine(w.Call), w.Volume)
	case w.Container != "":
		call += fmt.Sprintf(" of container %q", w.Container)
	case w.Volume != "":
		call += fmt.Sprintf(" for its volume %s", cutTo(oneLine(w.Volume), 40))
	}
	return fmt.Sprintf("when %s answers %s, for which it has taken %s so far, or at %s, in %s: %s", who, call,
		roundDuration(s.now.Sub(w.Since).Truncate(time.Second)), s.at(w.Until), roundUp(w.Until.Sub(s.now)), then)
}

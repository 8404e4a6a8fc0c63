package server

import (
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"
)

// zpagesWarning is on each page of KEP-4827 and KEP-4828, in their words.
const zpagesWarning = `
Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.

`

// getStatusz answers with what the agent is and for how long it has run (KEP-4827).
func (a agentHandlers) getStatusz(w http.ResponseWriter, r *http.Request) {
	v := a.h.Version()
	a.writeText(w, r, fmt.Sprintf("kubelet statusz%sStarted: %s\nUp: %s\nGo version: %s\nBinary version: %s\nPaths: %s\n", zpagesWarning,
		v.StartedAt.UTC().Format(time.UnixDate), time.Since(v.StartedAt).Round(time.Second), runtime.Version(), v.Version,
		strings.Join([]string{PathConfigz, PathFlagz, PathHealthz}, " ")))
}

// getFlagz answers with the whole configuration of the agent (KEP-4828): the flags that are no
// fields, and the fields of the configuration, whether a flag or a file set them.
func (a agentHandlers) getFlagz(w http.ResponseWriter, r *http.Request) {
	if a.h.Settings == nil {
		http.NotFound(w, r)
		return
	}
	settings, err := a.h.Settings()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	lines := make([]string, len(settings))
	for i, s := range settings {
		lines[i] = fmt.Sprintf("%s=%v\n", strings.TrimPrefix(s.Path, "--"), s.Value)
	}
	slices.Sort(lines)
	a.writeText(w, r, "kubelet flagz"+zpagesWarning+strings.Join(lines, ""))
}

package server

import (
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"strconv"
	"strings"
)

const maxProfileSeconds = 300

// Debug configures access to the agent's process.
type Debug struct {
	// Profiling enables /debug/pprof (enableProfilingHandler).
	Profiling bool
	// SetVerbosity sets the log verbosity in klog's numbers; nil: /debug/flags/v is disabled
	// (enableDebugFlagsHandler).
	SetVerbosity func(v uint32)
}

// debugHandlers give access to the agent's process.
type debugHandlers struct {
	out   *responder
	debug Debug
}

// route adds the profiles and the log level, or responses that they are disabled.
func (d debugHandlers) route(mux *http.ServeMux) {
	if !d.debug.Profiling {
		mux.HandleFunc(PathProfiles, disabled("profiling endpoint is disabled."))
		mux.HandleFunc(PathProfiles+"/", disabled("profiling endpoint is disabled."))
	} else {
		profile := func(pattern string, h http.HandlerFunc) { mux.HandleFunc(pattern, d.profile(h)) }
		mux.HandleFunc(PathProfiles, http.NotFound)   // the links of the index are relative to the path with a slash
		profile("GET "+PathProfiles+"/", pprof.Index) // and every runtime profile by its name
		profile("GET "+PathProfiles+"/cmdline", pprof.Cmdline)
		profile("GET "+PathProfiles+"/profile", pprof.Profile)
		profile("GET "+PathProfiles+"/trace", pprof.Trace)
		profile("GET "+PathProfiles+"/symbol", pprof.Symbol)
		profile("POST "+PathProfiles+"/symbol", pprof.Symbol)
	}
	if d.debug.SetVerbosity == nil {
		mux.HandleFunc(PathVerbosity, disabled("flags endpoint is disabled."))
		return
	}
	mux.HandleFunc("PUT "+PathVerbosity, func(w http.ResponseWriter, r *http.Request) { d.putVerbosity(w, r, d.debug.SetVerbosity) })
}

// profile bounds the duration of profiles and their number: they count as streams.
func (d debugHandlers) profile(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if v := r.FormValue("seconds"); v != "" {
			if s, err := strconv.ParseFloat(v, 64); err != nil || !(s > 0 && s <= maxProfileSeconds) {
				http.Error(w, fmt.Sprintf("seconds: %q is not a number up to %d", v, maxProfileSeconds), http.StatusBadRequest)
				return
			}
		}
		d.out.logAborted(r, d.out.stream(w, func() error {
			next(w, r)
			return nil
		}))
	}
}

// putVerbosity sets the log verbosity until the agent exits.
func (d debugHandlers) putVerbosity(w http.ResponseWriter, r *http.Request, set func(uint32)) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, fmt.Sprintf("body: %v", err), http.StatusBadRequest)
		return
	}
	text := strings.TrimSpace(string(body))
	v, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		http.Error(w, fmt.Sprintf("body: %.100q is not a level of verbosity like 4", text), http.StatusBadRequest)
		return
	}
	set(uint32(v))
	d.out.log.Info("log level changed", "v", v)
	d.out.writeText(w, r, fmt.Sprintf("successfully set klog.logging.verbosity to %d", v))
}

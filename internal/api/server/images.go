package server

import (
	"net/http"

	"berth/internal/runtime/images"
)

type imageHandlers struct {
	out   *responder
	prune Images
}

func (i imageHandlers) route(mux *http.ServeMux) {
	if i.prune != nil {
		mux.HandleFunc("POST "+PathPruneImages, i.postPrune)
	}
}

// postPrune removes unused images. It runs as long as it takes and the client is connected.
func (i imageHandlers) postPrune(w http.ResponseWriter, r *http.Request) {
	var o images.PruneOptions
	if !readBody(w, r, &o, `{"dryRun": true, "all": true}`) {
		return
	}
	i.out.log.Info("asked to remove unused images", "dryRun", o.DryRun, "all", o.All)
	i.out.logAborted(r, i.out.stream(w, func() error {
		verdicts, err := i.prune(r.Context(), o)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return nil
		}
		if verdicts == nil {
			verdicts = []images.Verdict{} // a list, not null
		}
		i.out.writeJSON(w, r, verdicts)
		return nil
	}))
}

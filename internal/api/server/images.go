package server

import (
	"net/http"

	"berth/internal/runtime/images"
)

type imageHandlers struct {
	*answerer
	h *Handlers
}

func (i imageHandlers) route(mux *http.ServeMux) {
	if i.h.PruneImages != nil {
		mux.HandleFunc("POST "+PathPruneImages, i.postPrune)
	}
}

// postPrune removes unused images. It runs as long as it takes and the client is connected.
func (i imageHandlers) postPrune(w http.ResponseWriter, r *http.Request) {
	var o images.PruneOptions
	if !readBody(w, r, &o, `{"dryRun": true, "all": true}`) {
		return
	}
	i.log.Info("asked to remove unused images", "dryRun", o.DryRun, "all", o.All)
	i.ended(r, i.stream(w, func() error {
		verdicts, err := i.h.PruneImages(r.Context(), o)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return nil
		}
		if verdicts == nil {
			verdicts = []images.Verdict{} // a list, not null
		}
		i.writeJSON(w, r, verdicts)
		return nil
	}))
}

package server

import "net/http"

// getNode answers with the Node: the API server's, or what stands for it where there is none.
func (d *door) getNode(w http.ResponseWriter, r *http.Request) {
	n, err := d.h.Node(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	d.writeJSON(w, r, n)
}

package server

import (
	"encoding/json"
	"net/http"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/api/negotiate"
)

// The media types of z-pages.
const (
	mediaJSON = "application/json"
	mediaYAML = "application/yaml"
	mediaText = "text/plain"
)

var zpageMedia = []string{mediaJSON, mediaYAML, mediaText}

// API group, versions and kinds of the structured z-pages.
const (
	zpageGroup       = "config.k8s.io"
	deprecatedZPages = "v1alpha1"
	kindStatusz      = "Statusz"
	kindFlagz        = "Flagz"
)

// zpageVersions have the same fields, so that the types of one serve all.
var zpageVersions = []string{"v1beta1", deprecatedZPages}

// zpageForm is the requested form of a z-page.
type zpageForm struct {
	kind    string
	media   string // one of the media types above
	version string // of the structured form; "" with text/plain
	pretty  string // the media type's parameter of that name
}

func (f zpageForm) typeMeta() metav1.TypeMeta {
	return metav1.TypeMeta{Kind: f.kind, APIVersion: zpageGroup + "/" + f.version}
}

// negotiateZPage returns the form that an Accept header prefers for a page of a kind, and false if
// none is acceptable. No header selects text. JSON and YAML require group, version and kind in the
// media type's parameters g, v and as; text requires their absence (KEP-4827, KEP-4828).
func negotiateZPage(accept, kind string) (zpageForm, bool) {
	if accept == "" {
		return zpageForm{kind: kind, media: mediaText}, true
	}
	var form zpageForm
	_, ok := negotiate.Choose(accept, zpageMedia, func(media string, params map[string]string) bool {
		form = zpageForm{kind: kind, media: media, version: params["v"], pretty: params["pretty"]}
		g, as := params["g"], params["as"]
		switch {
		case params["stream"] != "":
			return false
		case media == mediaText:
			return g == "" && form.version == "" && as == ""
		}
		return g == zpageGroup && slices.Contains(zpageVersions, form.version) && as == kind
	})
	return form, ok
}

// wantsIndent reports whether JSON is indented: as ?pretty or the media type's parameter requests,
// or else for interactive clients, as in the API server.
func wantsIndent(r *http.Request, form zpageForm) bool {
	switch r.URL.Query().Get("pretty") {
	case "":
	case "0", "false":
		return false
	default:
		return true
	}
	return form.pretty == "1" || negotiate.IsInteractive(r)
}

// refuseMedia responds that no offered media type is acceptable.
func (o *responder) refuseMedia(w http.ResponseWriter, r *http.Request) {
	status := negotiate.NotAcceptable(zpageMedia).Status()
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	w.Header().Set("Content-Type", mediaJSON)
	w.WriteHeader(http.StatusNotAcceptable)
	o.logAborted(r, json.NewEncoder(w).Encode(status))
}

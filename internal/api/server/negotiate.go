package server

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/munnerz/goautoneg"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The media types of z-pages.
const (
	mediaJSON = "application/json"
	mediaYAML = "application/yaml"
	mediaText = "text/plain"
)

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

// typeMeta returns the TypeMeta of a structured page.
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
	for _, clause := range goautoneg.ParseAccept(accept) {
		for _, media := range []string{mediaJSON, mediaYAML, mediaText} {
			if !matchesMedia(clause, media) || clause.Params["stream"] != "" {
				continue
			}
			g, v, as := clause.Params["g"], clause.Params["v"], clause.Params["as"]
			switch {
			case media != mediaText && g == zpageGroup && slices.Contains(zpageVersions, v) && as == kind:
				return zpageForm{kind: kind, media: media, version: v, pretty: clause.Params["pretty"]}, true
			case media == mediaText && g == "" && v == "" && as == "":
				return zpageForm{kind: kind, media: media}, true
			}
		}
	}
	return zpageForm{}, false
}

func matchesMedia(clause goautoneg.Accept, media string) bool {
	kind, sub, _ := strings.Cut(media, "/")
	return (clause.Type == kind || clause.Type == "*") && (clause.SubType == sub || clause.SubType == "*")
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
	if form.pretty == "1" {
		return true
	}
	agent := r.UserAgent()
	return strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") || strings.HasPrefix(agent, "Mozilla/5.0")
}

// refuseMedia responds that no offered media type is acceptable.
func (a *answerer) refuseMedia(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", mediaJSON)
	w.WriteHeader(http.StatusNotAcceptable)
	a.ended(r, json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure,
		Message:  "only the following media types are accepted: " + strings.Join([]string{mediaJSON, mediaYAML, mediaText}, ", "),
		Reason:   metav1.StatusReasonNotAcceptable,
		Code:     http.StatusNotAcceptable,
	}))
}

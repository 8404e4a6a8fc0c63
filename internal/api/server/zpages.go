package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	flagzv1beta1 "k8s.io/apiserver/pkg/server/flagz/api/v1beta1"
	statuszv1beta1 "k8s.io/apiserver/pkg/server/statusz/api/v1beta1"
	"sigs.k8s.io/yaml"
)

const component = "kubelet"

// zpagesWarning is the text on each page of KEP-4827 and KEP-4828.
const zpagesWarning = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.\n"

// zpageHandlers serve the z-pages: the agent's status and flags.
type zpageHandlers struct {
	out     *responder
	version func() Version
	// settings is nil without a configuration.
	settings func() ([]Setting, error)
	// paths are those that /statusz lists.
	paths []string
}

// route adds the enabled z-pages (feature gates ComponentStatusz and ComponentFlagz). It must be
// called last: /statusz lists the paths that the mux has by then, and itself.
func (z zpageHandlers) route(mux *http.ServeMux, k *Kubelet) {
	if !k.DisableFlagz && z.settings != nil {
		mux.HandleFunc("GET "+PathFlagz, z.getFlagz)
	}
	if k.DisableStatusz {
		return
	}
	z.paths = []string{PathStatusz}
	for _, path := range []string{PathConfigz, PathFlagz, PathHealthz, PathMetrics, PathCadvisor, PathProbes, PathResource, PathSLIs, PathPods, PathStatsSummary} {
		if _, pattern := mux.Handler(&http.Request{Method: http.MethodGet, URL: &url.URL{Path: path}}); pattern != "" {
			z.paths = append(z.paths, path)
		}
	}
	slices.Sort(z.paths)
	mux.HandleFunc("GET "+PathStatusz, z.getStatusz)
}

// getStatusz returns the agent's version and uptime (KEP-4827).
func (z zpageHandlers) getStatusz(w http.ResponseWriter, r *http.Request) {
	form, ok := negotiateZPage(acceptOf(r), kindStatusz)
	if !ok {
		z.out.refuseMedia(w, r)
		return
	}
	page := computeStatusz(z.version(), time.Now())
	page.Paths = z.paths
	if form.media == mediaText {
		z.out.writeText(w, r, formatStatusz(&page))
		return
	}
	page.TypeMeta = form.typeMeta()
	z.writeZPage(w, r, form, page)
}

// computeStatusz returns the page, without paths, for a version and time.
func computeStatusz(v Version, now time.Time) statuszv1beta1.Statusz {
	page := statuszv1beta1.Statusz{
		ObjectMeta: metav1.ObjectMeta{Name: component},
		StartTime:  metav1.NewTime(v.StartedAt.UTC()), UptimeSeconds: int64(now.Sub(v.StartedAt) / time.Second),
		GoVersion: runtime.Version(), BinaryVersion: strings.TrimPrefix(v.Version, "v"),
	}
	if parsed, err := utilversion.ParseSemantic(v.Version); err == nil { // otherwise the emulated version is unknown
		page.EmulationVersion = fmt.Sprintf("%d.%d", parsed.Major(), parsed.Minor())
	}
	return page
}

func formatStatusz(p *statuszv1beta1.Statusz) string {
	var b strings.Builder
	up := time.Duration(p.UptimeSeconds) * time.Second
	fmt.Fprintf(&b, "\n%s statusz\n%s\n", component, zpagesWarning)
	fmt.Fprintf(&b, "Started: %s\n", p.StartTime.Format(time.UnixDate))
	fmt.Fprintf(&b, "Up: %d hr %02d min %02d sec\n", up/time.Hour, up/time.Minute%60, up/time.Second%60)
	fmt.Fprintf(&b, "Go version: %s\nBinary version: %s\n", p.GoVersion, p.BinaryVersion)
	if p.EmulationVersion != "" {
		fmt.Fprintf(&b, "Emulation version: %s\n", p.EmulationVersion)
	}
	fmt.Fprintf(&b, "Paths: %s\n", strings.Join(p.Paths, " "))
	return b.String()
}

// getFlagz returns the agent's whole configuration (KEP-4828).
//
// Differs from the kubelet: besides flags it has the fields of the configuration, whether a flag or
// a file set them.
func (z zpageHandlers) getFlagz(w http.ResponseWriter, r *http.Request) {
	form, ok := negotiateZPage(acceptOf(r), kindFlagz)
	if !ok {
		z.out.refuseMedia(w, r)
		return
	}
	settings, err := z.settings()
	var flags map[string]string
	if err == nil {
		flags, err = computeFlags(settings)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if form.media == mediaText {
		z.out.writeText(w, r, formatFlagz(flags))
		return
	}
	z.writeZPage(w, r, form, flagzv1beta1.Flagz{
		TypeMeta:   form.typeMeta(),
		ObjectMeta: metav1.ObjectMeta{Name: component},
		Flags:      flags,
	})
}

// computeFlags returns settings by name: strings as they are, other values as JSON.
func computeFlags(settings []Setting) (map[string]string, error) {
	flags := make(map[string]string, len(settings))
	for _, s := range settings {
		name := strings.TrimPrefix(s.Path, "--")
		if text, ok := s.Value.(string); ok {
			flags[name] = text
			continue
		}
		var b strings.Builder
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false) // text needs no escaping, and JSON escapes it itself
		if err := e.Encode(s.Value); err != nil {
			return nil, fmt.Errorf("encode the value of %s: %w", s.Path, err)
		}
		flags[name] = strings.TrimSuffix(b.String(), "\n")
	}
	return flags, nil
}

func formatFlagz(flags map[string]string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s flagz\n%s", component, zpagesWarning)
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		fmt.Fprintf(&b, "%s=%s\n", name, flags[name])
	}
	return b.String()
}

func acceptOf(r *http.Request) string { return strings.Join(r.Header.Values("Accept"), ",") }

func (z zpageHandlers) writeZPage(w http.ResponseWriter, r *http.Request, form zpageForm, page any) {
	b, err := encodeZPage(form.media, page)
	if err == nil && form.media == mediaJSON && wantsIndent(r, form) {
		var indented bytes.Buffer
		err = json.Indent(&indented, b, "", "  ")
		b = indented.Bytes()
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", fmt.Sprintf("%s;g=%s;v=%s;as=%s", form.media, zpageGroup, form.version, form.kind))
	if form.version == deprecatedZPages {
		w.Header().Set("Warning", fmt.Sprintf(`299 - "This version of the %s endpoint is deprecated. Please use a newer version."`, strings.ToLower(form.kind)))
	}
	_, err = w.Write(b)
	z.out.logAborted(r, err)
}

func encodeZPage(media string, page any) ([]byte, error) {
	if media == mediaYAML {
		return yaml.Marshal(page)
	}
	b, err := json.Marshal(page)
	return append(b, '\n'), err
}

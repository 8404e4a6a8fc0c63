package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	flagzv1alpha1 "k8s.io/apiserver/pkg/server/flagz/api/v1alpha1"
	flagzv1beta1 "k8s.io/apiserver/pkg/server/flagz/api/v1beta1"
	statuszv1alpha1 "k8s.io/apiserver/pkg/server/statusz/api/v1alpha1"
	statuszv1beta1 "k8s.io/apiserver/pkg/server/statusz/api/v1beta1"
	"sigs.k8s.io/yaml"

	"berth/internal/api/server"
)

const zpagesWarning = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.\n"

// serveZPages runs a server of version v1.36.3+berth.1 that began 26 h 3 min 4 s ago.
func serveZPages(t *testing.T, k server.Kubelet) *kubelet {
	t.Helper()
	h := newNode().handlers()
	started := time.Now().Add(-26*time.Hour - 3*time.Minute - 4*time.Second)
	h.Agent.Version = func() server.Version { return server.Version{Version: "v1.36.3+berth.1", StartedAt: started} }
	k.Authentication.Anonymous = true
	scrapes := map[string]http.Handler{"/metrics": http.NotFoundHandler()}
	return serveKubeletWith(t, server.Config{Handlers: h, Scrapes: scrapes}, k)
}

func TestZPagesAsText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := serveZPages(t, server.Kubelet{})
		got, header := k.askWith(k.secure, "GET", "/statusz", credential{})
		want := answer{200, "\nkubelet statusz\n" + zpagesWarning + "\nStarted: Thu Dec 30 21:56:56 UTC 1999\nUp: 26 hr 03 min 04 sec\nGo version: " + runtime.Version() +
			"\nBinary version: 1.36.3+berth.1\nEmulation version: 1.36\nPaths: /configz /flagz /healthz /metrics /pods /statusz\n"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("statusz (-want +got):\n%s", diff)
		}
		if got := header.Get("Content-Type"); got != "text/plain; charset=utf-8" {
			t.Errorf("statusz: got media type %q", got)
		}
		flagz := answer{200, "\nkubelet flagz\n" + zpagesWarning + "cert-dir=/c\nmaxPods=110\n"}
		if diff := cmp.Diff(flagz, k.ask(k.secure, "GET", "/flagz", credential{})); diff != "" {
			t.Errorf("flagz (-want +got):\n%s", diff)
		}
	})
}

// strictly decodes an answer into a published type, which must have all of its fields.
func strictly[T any](t *testing.T, body string) T {
	t.Helper()
	var v T
	d := json.NewDecoder(strings.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		t.Errorf("decode %s: %v", body, err)
	}
	return v
}

func TestZPagesAreOfThePublishedTypes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := serveZPages(t, server.Kubelet{})
		ask := func(kind, version string) string {
			return k.ask(k.secure, "GET", "/"+strings.ToLower(kind), credential{accept: "application/json;v=" + version + ";g=config.k8s.io;as=" + kind}).Body
		}
		meta := metav1.ObjectMeta{Name: "kubelet"}
		paths := []string{"/configz", "/flagz", "/healthz", "/metrics", "/pods", "/statusz"}
		started := metav1.NewTime(time.Now().UTC().Add(-26*time.Hour - 3*time.Minute - 4*time.Second))
		beta := strictly[statuszv1beta1.Statusz](t, ask("Statusz", "v1beta1"))
		beta.StartTime = metav1.NewTime(beta.StartTime.UTC())
		if diff := cmp.Diff(statuszv1beta1.Statusz{
			TypeMeta: metav1.TypeMeta{Kind: "Statusz", APIVersion: "config.k8s.io/v1beta1"}, ObjectMeta: meta, StartTime: started, UptimeSeconds: 93784,
			GoVersion: runtime.Version(), BinaryVersion: "1.36.3+berth.1", EmulationVersion: "1.36", Paths: paths,
		}, beta); diff != "" {
			t.Errorf("statusz (-want +got):\n%s", diff)
		}
		alpha := strictly[statuszv1alpha1.Statusz](t, ask("Statusz", "v1alpha1"))
		alpha.StartTime = metav1.NewTime(alpha.StartTime.UTC())
		if diff := cmp.Diff(statuszv1alpha1.Statusz{
			TypeMeta: metav1.TypeMeta{Kind: "Statusz", APIVersion: "config.k8s.io/v1alpha1"}, ObjectMeta: meta, StartTime: started, UptimeSeconds: 93784,
			GoVersion: runtime.Version(), BinaryVersion: "1.36.3+berth.1", EmulationVersion: "1.36", Paths: paths,
		}, alpha); diff != "" {
			t.Errorf("statusz of v1alpha1 (-want +got):\n%s", diff)
		}
		flags := map[string]string{"cert-dir": "/c", "maxPods": "110"}
		if diff := cmp.Diff(flagzv1beta1.Flagz{
			TypeMeta: metav1.TypeMeta{Kind: "Flagz", APIVersion: "config.k8s.io/v1beta1"}, ObjectMeta: meta, Flags: flags,
		}, strictly[flagzv1beta1.Flagz](t, ask("Flagz", "v1beta1"))); diff != "" {
			t.Errorf("flagz (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(flagzv1alpha1.Flagz{
			TypeMeta: metav1.TypeMeta{Kind: "Flagz", APIVersion: "config.k8s.io/v1alpha1"}, ObjectMeta: meta, Flags: flags,
		}, strictly[flagzv1alpha1.Flagz](t, ask("Flagz", "v1alpha1"))); diff != "" {
			t.Errorf("flagz of v1alpha1 (-want +got):\n%s", diff)
		}
	})
}

// TestZPageNegotiation has the answers that the handlers of k8s.io/apiserver 0.36.3 give.
func TestZPageNegotiation(t *testing.T) {
	const text, refused = "text/plain; charset=utf-8", "406"
	synctest.Test(t, func(t *testing.T) {
		k := serveZPages(t, server.Kubelet{})
		for _, kind := range []string{"Statusz", "Flagz"} {
			full := ";v=v1beta1;g=config.k8s.io;as=" + kind
			parameters := ";g=config.k8s.io;v=v1beta1;as=" + kind
			for _, c := range []struct{ accept, want string }{
				{"", text},
				{"text/plain", text},
				{"text/plain;charset=utf-8", text},
				{"*/*", text},
				{"text/*", text},
				{"application/json" + full, "application/json" + parameters},
				{"application/json; as=" + kind + "; g=config.k8s.io; v=v1beta1", "application/json" + parameters},
				{"application/json;v=v1alpha1;g=config.k8s.io;as=" + kind, "application/json;g=config.k8s.io;v=v1alpha1;as=" + kind},
				{"application/yaml" + full, "application/yaml" + parameters},
				{"*/*" + full, "application/json" + parameters},
				{"application/*" + full, "application/json" + parameters},
				{"application/json;other=1" + full, "application/json" + parameters},
				{"application/json" + full + ", text/plain", "application/json" + parameters},
				{"text/plain;q=0.1, application/json" + full, "application/json" + parameters},
				{"application/json" + full + ";q=0.5, text/plain;q=0.9", text},
				{"application/json, text/plain", text},
				{"application/json;v=v9;g=config.k8s.io;as=" + kind + ", application/json" + full, "application/json" + parameters},
				{"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", text},
				{"application/json", refused},
				{"application/*", refused},
				{"application/json;v=v1;g=config.k8s.io;as=" + kind, refused},
				{"application/json;g=config.k8s.io;as=" + kind, refused},
				{"application/json;v=v1beta1;as=" + kind, refused},
				{"application/json;v=v1beta1;g=config.k8s.io", refused},
				{"application/json;v=v1beta1;g=config.k8s.io;as=Other", refused},
				{"application/json;stream=watch" + full, refused},
				{"application/cbor" + full, refused},
				{"application/vnd.kubernetes.protobuf" + full, refused},
				{"text/plain" + full, refused},
				{"text/html", refused},
				{";;;", refused},
			} {
				got, header := k.askWith(k.secure, "GET", "/"+strings.ToLower(kind), credential{accept: c.accept})
				if c.want == refused {
					want := answer{406, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",` +
						`"message":"only the following media types are accepted: application/json, application/yaml, text/plain","reason":"NotAcceptable","code":406}` + "\n"}
					if got != want || header.Get("Content-Type") != "application/json" {
						t.Errorf("%s, %q: got %+v of %s, want %+v", kind, c.accept, got, header.Get("Content-Type"), want)
					}
				} else if got.Status != 200 || header.Get("Content-Type") != c.want {
					t.Errorf("%s, %q: got %d of %q, want %q", kind, c.accept, got.Status, header.Get("Content-Type"), c.want)
				}
				warning := ""
				if strings.Contains(c.want, "v1alpha1") {
					warning = fmt.Sprintf(`299 - "This version of the %s endpoint is deprecated. Please use a newer version."`, strings.ToLower(kind))
				}
				if got := header.Get("Warning"); got != warning {
					t.Errorf("%s, %q: got warning %q, want %q", kind, c.accept, got, warning)
				}
			}
		}
	})
}

func TestZPageLayout(t *testing.T) {
	const (
		structured = "application/json;v=v1beta1;g=config.k8s.io;as=Flagz"
		compact    = `{"kind":"Flagz","apiVersion":"config.k8s.io/v1beta1","metadata":{"name":"kubelet"},"flags":{"cert-dir":"/c","maxPods":"110"}}` + "\n"
	)
	synctest.Test(t, func(t *testing.T) {
		k := serveZPages(t, server.Kubelet{})
		for _, c := range []struct {
			path, accept, agent string
			indented            string
		}{
			{"/flagz", structured, "", "no"},
			{"/flagz", structured, "curl/8.0", "yes"},
			{"/flagz", structured, "Wget/1.2", "yes"},
			{"/flagz", structured, "Mozilla/5.0 (X11)", "yes"},
			{"/flagz?pretty=0", structured, "curl/8.0", "no"},
			{"/flagz?pretty=false", structured, "curl/8.0", "no"},
			{"/flagz?pretty=1", structured, "", "yes"},
			{"/flagz?pretty", structured, "", "no"},
			{"/flagz", structured + ";pretty=1", "", "yes"},
		} {
			got := k.ask(k.secure, "GET", c.path, credential{accept: c.accept, agent: c.agent})
			if c.indented == "no" && got.Body != compact {
				t.Errorf("%s, %q, %q: got %s", c.path, c.accept, c.agent, got.Body)
			}
			if c.indented == "yes" && !strings.HasPrefix(got.Body, "{\n  \"kind\": \"Flagz\",\n") {
				t.Errorf("%s, %q, %q: got %s, want it indented", c.path, c.accept, c.agent, got.Body)
			}
		}
		var page flagzv1beta1.Flagz
		got := k.ask(k.secure, "GET", "/flagz", credential{accept: "application/yaml;v=v1beta1;g=config.k8s.io;as=Flagz", agent: "curl/8.0"})
		if err := yaml.UnmarshalStrict([]byte(got.Body), &page); err != nil || page.Flags["maxPods"] != "110" || strings.HasPrefix(got.Body, "{") {
			t.Errorf("YAML: got %s, %v", got.Body, err)
		}
	})
}

// TestZPagesAreClosedByTheirGates looks at which of them are there, and that statusz points at no
// path that is not.
func TestZPagesAreClosedByTheirGates(t *testing.T) {
	for _, c := range []struct {
		kubelet         server.Kubelet
		statusz, flagz  int
		statuszPointsAt string
	}{
		{server.Kubelet{}, 200, 200, "/configz /flagz /healthz /metrics /pods /statusz\n"},
		{server.Kubelet{DisableFlagz: true}, 200, 404, "/configz /healthz /metrics /pods /statusz\n"},
		{server.Kubelet{DisableStatusz: true}, 404, 200, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			k := serveZPages(t, c.kubelet)
			got := k.ask(k.secure, "GET", "/statusz", credential{})
			if got.Status != c.statusz || !strings.HasSuffix(got.Body, c.statuszPointsAt) {
				t.Errorf("%+v: statusz: got %+v", c, got)
			}
			if got := k.ask(k.secure, "GET", "/flagz", credential{}); got.Status != c.flagz {
				t.Errorf("%+v: flagz: got %+v", c, got)
			}
		})
	}
}

func TestFlagzShowsValuesThatAreNoTextAsJSON(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newNode().handlers()
		k := serveKubelet(t, h, server.Kubelet{Authentication: server.Authentication{Anonymous: true}})
		k.settings = []server.Setting{
			{Path: "clusterDNS", Value: []string{"10.0.0.10"}},
			{Path: "evictionHard", Value: map[string]string{"memory.available": "<5%"}},
			{Path: "failSwapOn", Value: false},
			{Path: "staticPodPath", Value: ""},
			{Path: "tracing", Value: nil},
		}
		want := answer{200, "\nkubelet flagz\n" + zpagesWarning + `clusterDNS=["10.0.0.10"]
evictionHard={"memory.available":"<5%"}
failSwapOn=false
staticPodPath=
tracing=null
`}
		if diff := cmp.Diff(want, k.ask(k.secure, "GET", "/flagz", credential{})); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
	})
}

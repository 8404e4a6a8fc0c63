package reads_test

import (
	"net/http/httptest"
	"testing"
	"fmt"
	"log/slog"
	"net/http"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"berth/internal/localapi/kinds"
	"berth/internal/localapi/reads"
	"berth/internal/localapi/store"
)

func TestTry(t *testing.T) {
	s, err := store.Open(store.Config{Path: t.TempDir() + "/api.db"})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", i), Namespace: "default", Labels: map[string]string{"a": "b"}}, Spec: v1.PodSpec{NodeName: "n"}}
		data, err := runtime.Encode(kinds.Codecs().EncoderForVersion(kinds.Codecs().SupportedMediaTypes()[2].Serializer, v1.SchemeGroupVersion), p)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Write(store.Key{Resource: "pods", Namespace: "default", Name: p.Name}, 0, data); err != nil {
			t.Fatal(err)
		}
	}
	h := reads.New(reads.Config{Store: s, Log: slog.Default(), Next: http.NotFoundHandler()})
	for _, u := range []string{"/api/v1/pods?limit=2", "/api/v1/namespaces/default/pods/p1", "/api/v1/pods?watch=1&timeoutSeconds=1&fieldSelector=spec.nodeName%3Dn&allowWatchBookmarks=1"} {
		for _, a := range []string{"application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "application/json;as=Table;g=meta.k8s.io;v=v1", "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"} {
			r := httptest.NewRequest("GET", u, nil)
			r.Header.Set("Accept", a)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			b := w.Body.String()
			fmt.Printf("%s %s: %d %v\n%.1500q\n", u, a, w.Code, w.Header(), b)
		}
	}
}

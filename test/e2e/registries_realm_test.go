//go:build e2e

package e2e

import (
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
)

// stranger is a server on another address of loopback, which keeps what it is asked.
type stranger struct {
	*httptest.Server
	mu    sync.Mutex
	asked []string // guarded by mu; method and path, credentials in the header, body
}

// newStranger starts a server that answers by f.
func newStranger(t *testing.T, address string, f http.HandlerFunc) *stranger {
	t.Helper()
	l, err := net.Listen("tcp", address+":0")
	if err != nil {
		t.Fatal(err)
	}
	s := &stranger{}
	s.Server = &httptest.Server{Listener: l, Config: &http.Server{
		ErrorLog: log.New(io.Discard, "", 0), // handshakes of TLS
		Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			body, _ := io.ReadAll(req.Body)
			user, password, _ := req.BasicAuth()
			s.mu.Lock()
			s.asked = append(s.asked, strings.Join([]string{req.Method, req.URL.Path, req.Header.Get("Authorization"), user, password, string(body)}, " "))
			s.mu.Unlock()
			f(w, req)
		}),
	}}
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// told returns the requests that had the text in them.
func (s *stranger) told(text string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.asked), func(r string) bool { return !strings.Contains(r, text) })
}

// A registry names the server that gives tokens for it: that one is shown the credentials, at
// whatever address, and for an anonymous pull none. Servers that the registry sends on to for its
// blobs are shown neither credentials nor tokens, also if they ask for some.
func TestRegistriesShowCredentials(t *testing.T) {
	t.Parallel()
	const user, password, token = "jane", "xyzzy-plugh-4711", "grunt-2342-token"
	n := newNode(t)
	n.start()
	r := newRegistry(t, httptest.NewServer)
	tokens := newStranger(t, "127.0.0.2", func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.WriteString(w, `{"access_token":"`+token+`","token":"`+token+`"}`)
	})
	var once sync.Map
	blobs := newStranger(t, "127.0.0.3", func(w http.ResponseWriter, req *http.Request) {
		if _, asked := once.LoadOrStore(req.URL.Path, true); !asked {
			w.Header().Set("WWW-Authenticate", `Basic realm="blobs"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		r.inner.ServeHTTP(w, req)
	})
	var named []string
	for _, name := range []string{"private", "public"} {
		image, _ := r.push(n, name)
		r.fault(name, func(w http.ResponseWriter, req *http.Request) bool {
			_, what := repositoryOf(req.URL.Path)
			switch {
			case req.Header.Get("Authorization") != "Bearer "+token:
				w.Header().Set("WWW-Authenticate", `Bearer realm="`+tokens.URL+`/token/`+name+`",service="test"`)
				w.WriteHeader(http.StatusUnauthorized)
			case what == "blobs":
				http.Redirect(w, req, blobs.URL+req.URL.Path, http.StatusTemporaryRedirect)
			default:
				return false
			}
			return true
		})
		named = append(named, image)
	}
	n.write("secret.yaml", pullSecret("good", dockerConfig(r.host, user, password)))
	n.write("private.yaml", puller("private", named[0], "IfNotPresent", "good"))
	n.write("public.yaml", puller("public", named[1], "IfNotPresent"))
	n.awaitReady("private", "public")

	for _, asked := range tokens.told(password) {
		if !strings.HasPrefix(asked, "POST /token/private ") || !strings.Contains(asked, "password="+password) {
			t.Errorf("the server of tokens was shown a credential so: %s", asked)
		}
	}
	if len(tokens.told(password)) == 0 || len(tokens.told("/token/public")) == 0 {
		t.Errorf("the server of tokens was asked %q", tokens.told(""))
	}
	for _, secret := range []string{user, password, token, "Basic", "Bearer"} {
		if told := blobs.told(secret); len(told) > 0 {
			t.Errorf("the server of blobs was shown %q", told)
		}
	}
	if len(blobs.told("")) == 0 {
		t.Error("the server of blobs was not asked")
	}
}

package server_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"

	"berth/internal/api/server"
)

func TestTokensAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reviewer := &apiServer{users: map[string]authenticationv1.UserInfo{"good": {Username: "bob"}}}
		k := serveKubelet(t, newNode().handlers(), server.Kubelet{Authentication: server.Authentication{Tokens: reviewer}})
		ask := func(token string, want int) {
			t.Helper()
			if got := k.ask(k.secure, "GET", "/healthz", credential{token: token}); got.Status != want {
				t.Errorf("token %q: got %+v, want %d", token, got, want)
			}
		}
		reviews := func(want int) {
			t.Helper()
			if reviewer.tokens != want {
				t.Errorf("%d reviews, want %d", reviewer.tokens, want)
			}
		}
		for range 3 {
			ask("good", 200)
			ask("bad", 401)
		}
		reviews(2)
		reviewer.down = true
		ask("good", 200) // what is known holds while the API server is down
		ask("other", 503)
		ask("other", 503) // and what could not be asked is asked again
		reviews(4)
		time.Sleep(2*time.Minute + time.Second)
		ask("good", 503)
		reviewer.down = false
		ask("good", 200)
		reviews(6)
	})
}

// Tokens that somebody makes up keep nobody else out: those who have a certificate, who come from
// elsewhere, and who are known already. What was not reviewed is never said to be bad: a client may
// throw its token away then.
func TestTokensThatNobodyAnswersFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reviewer := &apiServer{users: map[string]authenticationv1.UserInfo{"good": {Username: "bob"}, "fresh": {Username: "bob"}}}
		alice := newCertificate(t, pkix.Name{CommonName: "alice"})
		k := serveKubelet(t, newNode().handlers(), server.Kubelet{Authentication: server.Authentication{
			Tokens: reviewer, VerifyClient: func([]*x509.Certificate) error { return nil },
		}})
		want := func(status int, who credential) {
			t.Helper()
			if got := k.ask(k.secure, "GET", "/healthz", who); got.Status != status {
				t.Errorf("%+v: got %+v, want %d", who, got, status)
			}
		}
		want(200, credential{token: "good", from: "10.0.0.1:1"})
		reviewer.set(func() { reviewer.hang, reviewer.tokens = true, 0 })
		began := time.Now()
		answers := make(chan int, 300)
		for i := range cap(answers) {
			go func() {
				who := credential{token: fmt.Sprint("made up ", i), from: fmt.Sprintf("10.0.0.1:%d", i+2)}
				answers <- k.ask(k.secure, "GET", "/healthz", who).Status
			}()
		}
		synctest.Wait()
		if reviewer.tokens != 16 {
			t.Errorf("%d reviews for one address at a time, want 16", reviewer.tokens)
		}
		want(429, credential{token: "fresh", from: "10.0.0.1:1000"})
		reviewer.set(func() { reviewer.hang = false })
		want(200, credential{cert: alice, from: "10.0.0.1:1001"})
		want(200, credential{token: "good", from: "10.0.0.1:1002"})
		want(200, credential{token: "fresh", from: "10.0.0.2:1"})
		got := map[int]int{}
		for range cap(answers) {
			got[<-answers]++
		}
		if diff := cmp.Diff(map[int]int{429: 284, 503: 16}, got); diff != "" {
			t.Errorf("statuses of made-up tokens, -want +got:\n%s", diff)
		}
		if took := time.Since(began); took > 30*time.Second { // virtual time: ten seconds, and the farewells of TLS
			t.Errorf("all were answered after %v", took)
		}
	})
}

// Addresses that are many have no more than all reviews there are, and are told when to come again.
func TestTokensFromManyAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reviewer := &apiServer{hang: true}
		k := serveKubelet(t, newNode().handlers(), server.Kubelet{Authentication: server.Authentication{Tokens: reviewer}})
		var asking sync.WaitGroup
		for i := range 200 {
			asking.Go(func() {
				from := fmt.Sprintf("[2001:db8:0:%x::1]:1", i)
				if got := k.ask(k.secure, "GET", "/healthz", credential{token: fmt.Sprint(i), from: from}); got.Status == 401 {
					t.Errorf("from %s: %+v", from, got)
				}
			})
		}
		synctest.Wait()
		if reviewer.tokens != 64 {
			t.Errorf("%d reviews at a time, want 64", reviewer.tokens)
		}
		asking.Wait()
	})
}

// Bad tokens, of which there are as many as anybody likes, take no room from good ones.
func TestBadTokensAreForgottenFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reviewer := &apiServer{users: map[string]authenticationv1.UserInfo{"good": {Username: "bob"}}}
		k := serveKubelet(t, newNode().handlers(), server.Kubelet{Authentication: server.Authentication{Tokens: reviewer}})
		via := k.client(nil)
		defer via.CloseIdleConnections()
		ask := func(token string) int {
			t.Helper()
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://node/healthz", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+token)
			resp, err := via.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			return resp.StatusCode
		}
		ask("good")
		for i := range 5000 {
			if got := ask(fmt.Sprint("bad ", i)); got != 401 {
				t.Fatalf("a bad token: %d", got)
			}
		}
		reviewer.set(func() { reviewer.down = true })
		if got := ask("good"); got != 200 {
			t.Errorf("the good one is answered with %d", got)
		}
	})
}

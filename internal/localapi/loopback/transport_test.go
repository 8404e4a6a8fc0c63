package loopback

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
)

// in runs a test with a client of a handler in a bubble, in which no goroutine may be left.
func in(t *testing.T, handler http.HandlerFunc, test func(t *testing.T, c *http.Client)) {
	synctest.Test(t, func(t *testing.T) { test(t, &http.Client{Transport: Transport{handler}}) })
}

func get(t *testing.T, c *http.Client, ctx context.Context) (*http.Response, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://api/path", strings.NewReader("question"))
	if err != nil {
		t.Fatal(err)
	}
	return c.Do(r)
}

func TestRoundTrip(t *testing.T) {
	in(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		w.Header().Set("A", "b")
		w.WriteHeader(http.StatusTeapot)
		w.Header().Set("A", "too late")
		fmt.Fprintf(w, "%s %s %v", r.URL.Path, body, err)
	}, func(t *testing.T, c *http.Client) {
		r, err := get(t, c, t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		if r.StatusCode != http.StatusTeapot || r.Header.Get("A") != "b" || string(body) != "/path question <nil>" || err != nil {
			t.Errorf("answer = %d, %v, %q, %v", r.StatusCode, r.Header, body, err)
		}
	})
}

// A body that is closed, and a context that is done, end the handler.
func TestClientLeaves(t *testing.T) {
	for name, leave := range map[string]func(cancel func(), body io.Closer) error{
		"closes":  func(_ func(), body io.Closer) error { return body.Close() },
		"cancels": func(cancel func(), _ io.Closer) error { cancel(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			ended := make(chan error, 1)
			in(t, func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(http.StatusOK)
				<-r.Context().Done()
				ended <- r.Context().Err()
			}, func(t *testing.T, c *http.Client) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				r, err := get(t, c, ctx)
				if err != nil {
					t.Fatal(err)
				}
				if err := leave(cancel, r.Body); err != nil {
					t.Error(err)
				}
				synctest.Wait()
				select {
				case err := <-ended:
					if !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
				default:
					t.Error("the handler goes on")
				}
				_ = r.Body.Close() // again, where it is closed
			})
		})
	}
}

func TestHandlerThatSaysNothing(t *testing.T) {
	in(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, func(t *testing.T, c *http.Client) {
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			synctest.Wait()
			cancel()
		}()
		if r, err := get(t, c, ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("answer %v, %v", r, err)
		}
	})
}

func TestHandlerThatAborts(t *testing.T) {
	abort := func(w http.ResponseWriter) { w.(interface{ Abort() }).Abort() }
	in(t, func(w http.ResponseWriter, _ *http.Request) { abort(w) }, func(t *testing.T, c *http.Client) {
		if r, err := get(t, c, t.Context()); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("before an answer: %v, %v", r, err)
		}
	})
	in(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("half"))
		abort(w)
	}, func(t *testing.T, c *http.Client) {
		r, err := get(t, c, t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		if body, err := io.ReadAll(r.Body); string(body) != "half" || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("in the middle: %q, %v", body, err)
		}
	})
}

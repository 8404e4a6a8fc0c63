package apiserver

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// process is a child without a process.
type process struct {
	serves  chan struct{}
	ended   chan struct{}
	once    sync.Once
	obeys   bool // SIGTERM
	asked   time.Time
	killed  time.Time
	release chan struct{} // what requests wait for; nil for nothing
}

func newProcess() *process {
	return &process{serves: make(chan struct{}), ended: make(chan struct{}), obeys: true}
}

func (p *process) RoundTrip(q *http.Request) (*http.Response, error) {
	if p.release != nil {
		select {
		case <-p.release:
		case <-p.ended:
			return nil, io.ErrUnexpectedEOF
		}
	}
	return &http.Response{StatusCode: 200, Body: http.NoBody, Request: q, Header: http.Header{}}, nil
}

func (p *process) die() { p.once.Do(func() { close(p.ended) }) }

func (p *process) child() *child {
	return &child{
		transport: p, ready: p.serves, done: p.ended,
		why: func() error { return errors.New("it has ended") },
		terminate: func() {
			p.asked = time.Now()
			if p.obeys {
				p.die()
			}
		},
		kill:  func() { p.killed = time.Now(); p.die() },
		close: func() {},
	}
}

// childOf starts the processes, one after the other.
func childOf(t *testing.T, processes ...*process) (*Child, *int) {
	t.Helper()
	started := new(int)
	r := &Child{log: slog.New(slog.DiscardHandler), socket: t.TempDir() + "/none", launch: func() (*child, error) {
		*started++
		return processes[*started-1].child(), nil
	}}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r, started
}

func ask(r *Child) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	q := httptest.NewRequest("POST", "/api", strings.NewReader("{}"))
	r.ServeHTTP(w, q.WithContext(WithIdentity(q.Context(), Identity{Name: "ann"})))
	return w
}

func serving() *process {
	p := newProcess()
	close(p.serves)
	return p
}

func TestIdleChildEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := serving(), serving()
		r, started := childOf(t, first, second)
		ask(r)
		time.Sleep(59 * time.Second)
		ask(r)
		last := time.Now()
		<-first.ended
		synctest.Wait()
		if idle := first.asked.Sub(last); idle != time.Minute || !first.killed.IsZero() {
			t.Errorf("asked to end %v after the last request, killed: %v; want 1m0s, and not", idle, first.killed)
		}
		if w := ask(r); w.Code != 200 || *started != 2 {
			t.Errorf("the next request: %d, by child %d", w.Code, *started)
		}
		if err := r.Health(); err != nil {
			t.Errorf("an idle end is no death: %v", err)
		}
	})
}

func TestRequestUnderWayKeepsTheChild(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := serving()
		p.release = make(chan struct{})
		r, _ := childOf(t, p)
		answered := make(chan int)
		go func() { answered <- ask(r).Code }()
		time.Sleep(time.Hour)
		synctest.Wait()
		if !p.asked.IsZero() {
			t.Error("the child is asked to end while it has a request")
		}
		close(p.release)
		if code := <-answered; code != 200 {
			t.Errorf("answer %d", code)
		}
		since := time.Now()
		<-p.ended
		if idle := time.Since(since); idle != time.Minute {
			t.Errorf("ended %v after the request, want 1m0s", idle)
		}
	})
}

func TestChildThatDoesNotEndIsKilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := serving()
		p.obeys = false
		r, _ := childOf(t, p)
		ask(r)
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		if after := p.killed.Sub(p.asked); after != endTime {
			t.Errorf("killed %v after it was asked, want %v", after, endTime)
		}
	})
}

func TestChildThatNeverServesIsKilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess()
		r, _ := childOf(t, p)
		start := time.Now()
		w := ask(r)
		if w.Code != 503 || !strings.Contains(w.Body.String(), "did not serve within 30s") || time.Since(start) != startTime || p.killed.IsZero() {
			t.Errorf("answer %d %s after %v", w.Code, w.Body, time.Since(start))
		}
	})
}

func TestThreeDeathsWithinAMinuteAreIllHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var processes []*process
		for range 4 {
			processes = append(processes, serving())
		}
		r, started := childOf(t, processes...)
		die := func() {
			t.Helper()
			ask(r)
			processes[*started-1].die()
			synctest.Wait()
		}
		die()
		time.Sleep(61 * time.Second)
		die()
		die()
		if err := r.Health(); err != nil {
			t.Errorf("two deaths within a minute: %v", err)
		}
		die()
		if err := r.Health(); err == nil {
			t.Error("three deaths within a minute are healthy")
		}
		time.Sleep(time.Minute)
		if err := r.Health(); err != nil {
			t.Errorf("a minute later: %v", err)
		}
	})
}

func TestCloseWhileAChildStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess()
		r, _ := childOf(t, p)
		answered := make(chan int)
		go func() { answered <- ask(r).Code }()
		synctest.Wait()
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		if code := <-answered; code != 503 {
			t.Errorf("answer %d, want 503", code)
		}
	})
}

package journal

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

func TestRingKeepsTheNewest(t *testing.T) {
	j := New(slog.New(slog.DiscardHandler))
	s := Subject{UID: "u", Namespace: "default", Name: "web"}
	for i := range entriesPerPod + 10 {
		j.Record(Entry{Subject: s, Decision: fmt.Sprint(i)})
	}
	got := j.Read("default", "web")
	if len(got) != entriesPerPod || got[0].Decision != "10" || got[len(got)-1].Decision != fmt.Sprint(entriesPerPod+9) {
		t.Fatalf("%d entries from %s to %s", len(got), got[0].Decision, got[len(got)-1].Decision)
	}
}

func TestRepetitionsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := New(slog.New(slog.DiscardHandler))
		s := Subject{UID: "u", Namespace: "default", Name: "web"}
		j.Record(Entry{Subject: s, Decision: "first"})
		for range 3 {
			j.Record(Entry{Subject: s, Decision: "again", Took: time.Second})
			time.Sleep(time.Minute)
		}
		last := time.Now()
		j.Record(Entry{Subject: s, Decision: "again"})
		got := j.Read("default", "web")
		if len(got) != 2 || got[1].Count != 4 || !got[1].Time.Equal(last) {
			t.Fatalf("got %+v, want the repetitions as one entry of the last time", got)
		}
	})
}

func TestSubjectsAreBounded(t *testing.T) {
	j := New(slog.New(slog.DiscardHandler))
	for i := range subjects + 5 {
		j.Record(Entry{Subject: Subject{UID: types.UID(fmt.Sprint(i)), Name: fmt.Sprint(i)}, Decision: "x"})
	}
	if n := len(j.Subjects()); n != subjects {
		t.Fatalf("%d subjects, want %d", n, subjects)
	}
	if len(j.Read("", "0")) != 0 || len(j.Read("", fmt.Sprint(subjects+4))) != 1 {
		t.Fatal("not the oldest subject was dropped")
	}
}

func TestIncarnationsOfOneName(t *testing.T) {
	j := New(slog.New(slog.DiscardHandler))
	j.Record(Entry{Subject: Subject{UID: "a", Namespace: "n", Name: "web"}, Decision: "one"})
	j.Record(Entry{Subject: Subject{UID: "b", Namespace: "n", Name: "web"}, Decision: "two"})
	j.Record(Entry{Subject: Subject{Name: "web.yaml"}, Decision: "refused"})
	if got := j.Read("n", "web"); len(got) != 2 || got[1].Decision != "two" {
		t.Fatalf("got %+v", got)
	}
	if got := j.Read("", "web.yaml"); len(got) != 1 {
		t.Fatalf("got %+v", got)
	}
}

func TestErrorsAreLogged(t *testing.T) {
	var b bytes.Buffer
	j := New(slog.New(slog.NewTextHandler(&b, nil)))
	j.Record(Entry{Subject: Subject{Namespace: "n", Name: "web"}, Component: "runtime", Container: "c", Decision: "start", Why: "it exited", Took: time.Second, Error: "no"})
	j.Record(Entry{Subject: Subject{Namespace: "n", Name: "web"}, Decision: "fine"})
	for _, want := range []string{"level=WARN", "pod=n/web", "container=c", "error=no", `why="it exited"`, "took=1s"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the log lacks %s: %s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "fine") {
		t.Error("a decision without an error is logged above debug")
	}
}

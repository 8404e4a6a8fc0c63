package podconfig

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
	"berth/internal/record/journal"
)

// programPod is a pod of a program, with one container of the image.
func programPod(name, image string) ProgramObject {
	return &v1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PodSpec{Containers: []v1.Container{{Name: "main", Image: image}}},
	}
}

// operations are what the loop is to do, as "ADD a b".
func operations(c *PodConfig) []string {
	var out []string
	for _, u := range c.Take() {
		words := []string{u.Op.String()}
		for _, p := range u.Pods {
			words = append(words, p.Name)
		}
		out = append(out, strings.Join(words, " "))
	}
	return out
}

func TestProgramSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type setting struct {
			objects []ProgramObject
			err     chan error
		}
		sets := make(chan setting)
		c, err := New(Config{
			NodeName: "node", Log: slog.New(slog.DiscardHandler), Journal: journal.New(slog.New(slog.DiscardHandler)),
			Program: func(_ context.Context, set func([]ProgramObject) error) error {
				for s := range sets {
					s.err <- set(s.objects)
				}
				return nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- c.Run(ctx) }()
		synctest.Wait()
		if c.SeenAllSources() || operations(c) != nil {
			t.Error("something is known before the program has said it")
		}

		for _, step := range []struct {
			what    string
			objects []ProgramObject
			refused string // part of the error; "" for none
			want    []string
		}{
			{"two", []ProgramObject{programPod("a", "x:1"), programPod("b", "x:1")}, "", []string{"ADD a b"}},
			{"the same", []ProgramObject{programPod("a", "x:1"), programPod("b", "x:1")}, "", nil},
			{"b is another", []ProgramObject{programPod("a", "x:1"), programPod("b", "x:2")}, "", []string{"REMOVE b", "ADD b"}},
			{"b is bad: it stays", []ProgramObject{programPod("a", "x:1"), programPod("b", "")}, "spec.containers[0].image", nil},
			{"c comes though b is bad", []ProgramObject{programPod("b", ""), programPod("c", "x:1")}, "the last good version stays", []string{"REMOVE a", "ADD c"}},
			{"c twice", []ProgramObject{programPod("c", "x:1"), programPod("c", "x:2")}, "c: is there twice", []string{"REMOVE b"}},
			{"none", nil, "", []string{"REMOVE c"}},
		} {
			s := setting{step.objects, make(chan error)}
			sets <- s
			err := <-s.err
			if (err == nil) != (step.refused == "") || err != nil && !strings.Contains(err.Error(), step.refused) {
				t.Errorf("%s: the error %v, want one with %q", step.what, err, step.refused)
			}
			if got := operations(c); !slices.Equal(got, step.want) {
				t.Errorf("%s: %q, want %q", step.what, got, step.want)
			}
			if got := len(c.Problems()); (got == 0) != (step.refused == "") {
				t.Errorf("%s: %d problems", step.what, got)
			}
		}
		if !c.SeenAllSources() {
			t.Error("the source counts as not seen")
		}
		close(sets) // the program has no more to say, which is not the end
		synctest.Wait()
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
	})
}

// What a program has is a static pod with the name that it was given, complete with defaults.
func TestPodOfProgramIsComplete(t *testing.T) {
	s := newProgramSource(Config{NodeName: "node"})
	n, err := s.decodeSet([]ProgramObject{programPod("a", "x:1")})
	if err != nil || len(n.pods) != 1 {
		t.Fatalf("%d pods: %v", len(n.pods), err)
	}
	p := n.pods[0]
	if p.Namespace != "default" || p.Spec.RestartPolicy != v1.RestartPolicyAlways || p.UID == "" || !pod.IsStatic(p) || pod.SourceOf(p) != pod.ProgramSource {
		t.Errorf("got %+v", p)
	}
}

func TestProgramThatFails(t *testing.T) {
	failed := errors.New("no database")
	c, err := New(Config{
		NodeName: "node", Log: slog.New(slog.DiscardHandler), Journal: journal.New(slog.New(slog.DiscardHandler)),
		Program: func(context.Context, func([]ProgramObject) error) error { return failed },
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Run(t.Context()); !errors.Is(err, failed) {
		t.Errorf("got %v", err)
	}
}

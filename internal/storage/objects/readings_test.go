package objects

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/config"
)

// reads is an API server that is only read from: it answers from memory, which may be old, to who
// allows it.
type reads struct {
	*server
	asked  []string // the versions that were asked for
	memory *v1.ConfigMap
	err    error
	during func() // called in the middle of a reading
}

func (r *reads) ReadConfigMap(_ context.Context, namespace, name string, options metav1.GetOptions) (*v1.ConfigMap, error) {
	r.asked = append(r.asked, options.ResourceVersion)
	if r.err != nil {
		return nil, r.err
	}
	m := r.configMaps[key{namespace, name}]
	if options.ResourceVersion == "0" && r.memory != nil {
		m = r.memory
	}
	if r.during != nil {
		r.during()
	}
	if m == nil {
		return nil, apierrors.NewNotFound(v1.Resource("configmaps"), name)
	}
	return m, nil
}

func (r *reads) ReadSecret(context.Context, string, string, metav1.GetOptions) (*v1.Secret, error) {
	return nil, errors.New("no secret here")
}

// takeAsked returns what was asked for since it was last called.
func (r *reads) takeAsked() []string {
	out := r.asked
	r.asked = nil
	return out
}

func startReading(t *testing.T, strategy config.ResourceChangeDetectionStrategy, ttl func() (time.Duration, bool)) (*reads, *Objects) {
	t.Helper()
	r := &reads{server: newServer()}
	o, err := New(Config{
		API: r, Classes: r, Accounts: r, SyncFrequency: time.Minute, Log: slog.New(slog.DiscardHandler),
		Strategy: Strategy{Name: strategy, Read: r, TTL: ttl},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- o.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run ended with %v", err)
		}
		if left := r.watched(); len(left) != 0 {
			t.Errorf("watched: %v", left)
		}
	})
	return r, o
}

func TestCopiesServeForTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, o := startReading(t, config.TTLCacheChangeDetectionStrategy, nil)
		r.setConfigMap("ns", "a", map[string]string{"k": "1"})
		if got := value(t, o, "a"); got != `object "ns"/"a" not registered` {
			t.Errorf("got %s", got)
		}
		p := podWith("1", []string{"a", "b"}, nil)
		p.ResourceVersion = "1"
		o.Register(p)
		expect := func(when, name, want string, asked ...string) {
			t.Helper()
			if got := value(t, o, name); got != want {
				t.Errorf("%s: %s is %q, want %q", when, name, got, want)
			}
			if got := r.takeAsked(); !slices.Equal(got, asked) {
				t.Errorf("%s: asked for versions %q, want %q", when, got, asked)
			}
		}
		expect("the first time", "a", "1", "")
		expect("none", "b", `configmap "b" not found`, "")
		r.setConfigMap("ns", "a", map[string]string{"k": "2"})
		r.setConfigMap("ns", "b", map[string]string{"k": "2"})
		o.Register(p)
		time.Sleep(59 * time.Second)
		expect("a copy", "a", "1")
		expect("that there was none", "b", `configmap "b" not found`)
		time.Sleep(time.Second)
		expect("too old", "a", "2", "0")
		expect("there was none", "b", "2", "")

		// The server's memory may be behind what was seen; it is not believed then.
		r.memory = &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "1"}, Data: map[string]string{"k": "1"}}
		time.Sleep(time.Minute)
		expect("an older version", "a", "2", "0")
		r.memory = nil

		// Another version of the pod, and another pod, want what there is now.
		r.setConfigMap("ns", "a", map[string]string{"k": "3"})
		p = p.DeepCopy()
		p.ResourceVersion = "2"
		o.Register(p)
		expect("the pod changed", "a", "3", "")
		r.setConfigMap("ns", "a", map[string]string{"k": "4"})
		o.Register(podWith("2", []string{"a"}, nil))
		expect("a pod came", "a", "4", "")

		// While the server does not answer, a copy serves, unless a pod came since.
		r.err = errors.New("away")
		time.Sleep(time.Hour)
		expect("away", "a", "4", "0")
		o.Register(podWith("3", []string{"a"}, nil))
		expect("away, and a pod came", "a", "away", "")
		r.err = nil
		r.deleteConfigMap("ns", "a")
		expect("gone", "a", `configmap "a" not found`, "")
	})
}

// A reading that began before a pod came is none for that pod.
func TestPodThatComesDuringAReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, o := startReading(t, config.TTLCacheChangeDetectionStrategy, nil)
		r.setConfigMap("ns", "a", map[string]string{"k": "1"})
		o.Register(podWith("1", []string{"a"}, nil))
		r.during = func() {
			r.during = nil
			time.Sleep(time.Millisecond)
			r.setConfigMap("ns", "a", map[string]string{"k": "2"})
			o.Register(podWith("2", []string{"a"}, nil))
		}
		if got := value(t, o, "a"); got != "1" {
			t.Errorf("got %s", got)
		}
		if got := value(t, o, "a"); got != "2" {
			t.Errorf("the pod that came got %s", got)
		}
	})
}

func TestTheNodeSaysHowLongCopiesServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seconds := 15 * time.Second
		r, o := startReading(t, config.TTLCacheChangeDetectionStrategy, func() (time.Duration, bool) { return seconds, true })
		r.setConfigMap("ns", "a", map[string]string{"k": "1"})
		o.Register(podWith("1", []string{"a"}, nil))
		value(t, o, "a")
		r.setConfigMap("ns", "a", map[string]string{"k": "2"})
		time.Sleep(14 * time.Second)
		if got := value(t, o, "a"); got != "1" {
			t.Errorf("got %s", got)
		}
		time.Sleep(time.Second)
		if got := value(t, o, "a"); got != "2" {
			t.Errorf("got %s", got)
		}
		r.setConfigMap("ns", "a", map[string]string{"k": "3"})
		seconds = 0
		if got := value(t, o, "a"); got != "3" {
			t.Errorf("got %s", got)
		}
	})
}

func TestEveryReadingIsAQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, o := startReading(t, config.GetChangeDetectionStrategy, nil)
		r.setConfigMap("ns", "a", map[string]string{"k": "1"})
		o.Register(podWith("1", []string{"a"}, nil))
		value(t, o, "a")
		r.setConfigMap("ns", "a", map[string]string{"k": "2"})
		if got := value(t, o, "a"); got != "2" {
			t.Errorf("got %s", got)
		}
		if got := r.takeAsked(); !slices.Equal(got, []string{"", ""}) {
			t.Errorf("asked for versions %q", got)
		}
		r.err = errors.New("away")
		if got := value(t, o, "a"); got != "away" {
			t.Errorf("got %s", got)
		}
	})
}

// Pods that show objects are looked at again and again, others are not.
func TestLooksAtPodsThatShowObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, o := startReading(t, config.GetChangeDetectionStrategy, nil)
		one := podWith("1", []string{"a"}, nil)
		o.Register(one)
		o.Register(podWith("2", nil, []string{"a"}))
		time.Sleep(time.Minute - time.Nanosecond)
		if got := told(o); got != nil {
			t.Errorf("told %v too early", got)
		}
		for range 3 {
			looks := 0
			for range 6 {
				time.Sleep(15 * time.Second)
				if got := told(o); slices.Equal(got, []string{"1"}) {
					looks++
				} else if got != nil {
					t.Errorf("told %v", got)
				}
			}
			if looks == 0 {
				t.Error("nobody looked for a minute and a half")
			}
		}
		one = one.DeepCopy()
		one.Spec.Volumes = nil
		o.Register(one)
		o.Unregister("2")
		told(o)
		time.Sleep(time.Hour)
		if got := told(o); got != nil {
			t.Errorf("told %v", got)
		}
		r := o.configMaps.(*readings[v1.ConfigMap])
		if len(r.copies) != 0 || len(r.pods) != 0 {
			t.Errorf("left: %v, %v", r.copies, r.pods)
		}
	})
}

func TestStrategiesThatCannotBe(t *testing.T) {
	s := newServer()
	for _, strategy := range []Strategy{{Name: "Guess"}, {Name: config.GetChangeDetectionStrategy}} {
		if _, err := New(Config{API: s, Classes: s, Accounts: s, Strategy: strategy}); err == nil {
			t.Errorf("no error for %+v", strategy)
		}
	}
}

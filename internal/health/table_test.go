package health_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/health"
)

// fails is a check that always fails.
func fails() error { return errors.New("bad") }

func fine() error { return nil }

// wrong returns what is wrong by the table, as "CODE" or "CODE because of [CODE]".
func wrong(t *health.Table) []string {
	var out []string
	for _, s := range t.States() {
		switch {
		case s.Error == "":
		case s.BecauseOf != nil:
			out = append(out, fmt.Sprintf("%s because of %v", s.Code, s.BecauseOf))
		default:
			out = append(out, string(s.Code))
		}
	}
	return out
}

func newTable(t *testing.T, owners map[health.Code]health.Check) *health.Table {
	t.Helper()
	table, err := health.New(owners)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func TestDependencies(t *testing.T) {
	for name, tt := range map[string]struct {
		owners map[health.Code]health.Check
		want   []string
	}{
		"all is fine": {map[health.Code]health.Check{health.PLEG: fine, health.EmbeddedRuntime: fine}, nil},
		"alone":       {map[health.Code]health.Check{health.PLEG: fails, health.EmbeddedRuntime: fine}, []string{"PLEG"}},
		"without the owner of what it depends on": {
			map[health.Code]health.Check{health.PLEG: fails, health.Manifests: fails}, []string{"PLEG", "Manifests"},
		},
		"one follows from the other": {
			map[health.Code]health.Check{health.PLEG: fails, health.EmbeddedRuntime: fails}, []string{"PLEG because of [EmbeddedRuntime]", "EmbeddedRuntime"},
		},
		"only the bottom is named": {
			map[health.Code]health.Check{health.ContainerRuntime: fails, health.ContainerNetwork: fails, health.PLEG: fails, health.EmbeddedRuntime: fails, health.EventStream: fails},
			[]string{
				"ContainerRuntime because of [EmbeddedRuntime]", "ContainerNetwork because of [EmbeddedRuntime]", "PLEG because of [EmbeddedRuntime]",
				"EmbeddedRuntime", "EventStream because of [EmbeddedRuntime]",
			},
		},
		"no way through what is fine": {
			map[health.Code]health.Check{health.ContainerNetwork: fails, health.ContainerRuntime: fine, health.EmbeddedRuntime: fails},
			[]string{"ContainerNetwork", "EmbeddedRuntime"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, wrong(newTable(t, tt.owners))); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestVisibleAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var server, plugins health.Latch
		table := newTable(t, map[health.Code]health.Check{health.APIServer: server.Err, health.Plugins: plugins.Err})
		expect := func(when string, want ...string) {
			t.Helper()
			if diff := cmp.Diff(want, wrong(table)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", when, diff)
			}
		}
		server.Set(errors.New("refused"))
		plugins.Set(errors.New("no answer"))
		began := time.Now()
		time.Sleep(9 * time.Second)
		expect("at first")
		time.Sleep(time.Second)
		expect("after 10 s", "Plugins")
		server.Set(errors.New("no route")) // the time goes on
		time.Sleep(20 * time.Second)
		expect("after 30 s", "Plugins because of [APIServer]", "APIServer")
		for _, s := range table.States() {
			if !s.Since.Equal(began) {
				t.Errorf("%s holds since %v, want %v", s.Code, s.Since, began)
			}
			if s.Code == health.APIServer && s.Error != "no route" {
				t.Errorf("the error is %q, want the newest", s.Error)
			}
		}
		server.Set(nil)
		expect("when the server is back", "Plugins")
		server.Set(errors.New("refused"))
		expect("when it is gone again", "Plugins")
	})
}

// Everything that follows from others is in the message of Ready too, as the kubelet has it.
func TestRenderings(t *testing.T) {
	table := newTable(t, map[health.Code]health.Check{
		health.ContainerRuntime: func() error { return errors.New("container runtime is down") },
		health.PLEG:             func() error { return errors.New("PLEG is not healthy: x") },
		health.EmbeddedRuntime:  func() error { return errors.New("the embedded runtime is not healthy: y") },
		health.APIServer:        fails, health.Persistence: fails, health.Clock: fails, health.Manifests: fails, health.Quarantine: fails,
		health.ClientCertificate: fails, health.ServingCertificate: fails, health.Plugins: fails, health.EventStream: fails,
		health.DevicePlugins: fails, health.ContainerCPUs: fails,
	})
	if got, want := fmt.Sprint(table.NotReady()), "[container runtime is down PLEG is not healthy: x the embedded runtime is not healthy: y]"; got != want {
		t.Errorf("not ready: %s, want %s", got, want)
	}
	if got, want := fmt.Sprint(table.Healthz()), "PLEG is not healthy: x\nthe embedded runtime is not healthy: y"; got != want {
		t.Errorf("healthz: %s, want %s", got, want)
	}
	sound := newTable(t, map[health.Code]health.Check{health.PLEG: fine})
	if errs, err := sound.NotReady(), sound.Healthz(); errs != nil || err != nil {
		t.Errorf("while all is fine: not ready %v, healthz %v", errs, err)
	}
}

func TestOwners(t *testing.T) {
	if _, err := health.New(map[health.Code]health.Check{"Weather": fine}); err == nil || !strings.Contains(err.Error(), "Weather") {
		t.Errorf("error of a code that is not declared: %v", err)
	}
	if _, err := health.New(map[health.Code]health.Check{health.PLEG: nil}); err == nil {
		t.Error("nil is taken for an owner")
	}
	if got := newTable(t, nil).States(); len(got) != 0 {
		t.Errorf("without owners: %v", got)
	}
}

// Each condition says what it is, and none depends on itself by any way.
func TestDeclared(t *testing.T) {
	all := map[health.Code]health.Condition{}
	for _, c := range health.Declared() {
		if _, twice := all[c.Code]; twice || c.Code == "" || !strings.HasSuffix(c.Title, ".") || !strings.HasSuffix(c.Help, ".") {
			t.Errorf("%q is declared twice, or has no title or help that is a sentence: %+v", c.Code, c)
		}
		all[c.Code] = c
	}
	var reaches func(from, to health.Code) bool
	reaches = func(from, to health.Code) bool {
		return slices.ContainsFunc(all[from].DependsOn, func(d health.Code) bool { return d == to || reaches(d, to) })
	}
	for code, c := range all {
		for _, d := range c.DependsOn {
			if _, ok := all[d]; !ok || reaches(d, code) {
				t.Errorf("%s depends on %s, which is not declared or depends on it", code, d)
			}
		}
	}
}

func TestLatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l health.Latches
		if err := l.Err(); err != nil {
			t.Errorf("at first: %v", err)
		}
		l.Set("b", errors.New("b: no"))
		time.Sleep(time.Second)
		l.Set("a", errors.New("a: no"))
		if got := fmt.Sprint(l.Err()); got != "a: no\nb: no" {
			t.Errorf("both: %q", got)
		}
		l.Set("a", nil)
		l.Set("c", nil)
		if got := fmt.Sprint(l.Err()); got != "b: no" {
			t.Errorf("one: %q", got)
		}
		l.Set("b", nil)
		if err := l.Err(); err != nil {
			t.Errorf("none: %v", err)
		}
		if health.Since(nil, time.Now()) != nil {
			t.Error("nil since a while is an error")
		}
	})
}

package journal

import (
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// An error that comes again, or that an event and the end of the pass tell too, is one line of the
// log; after a while it is told once more, with how often it came.
func TestLogOfWhatRepeats(t *testing.T) {
	web, db := Subject{UID: "u", Namespace: "default", Name: "web"}, Subject{UID: "v", Namespace: "default", Name: "db"}
	const why = `failed to start sandbox "%s": mkdir /sys/fs/cgroup/%s: cannot allocate memory, as process %d says`
	failure := func(component, decision, before string, n int) Entry {
		id := strings.Repeat(fmt.Sprint(n%10), 64)
		return Entry{Subject: web, Component: component, Decision: decision, Error: before + fmt.Sprintf(why, id, id, n)}
	}
	for _, tc := range []struct {
		name    string
		entries []Entry
		after   time.Duration // between two entries
		want    []string      // what is logged as a warning: decision, and how often it came before
	}{
		{"the same again", []Entry{failure("runtime", "no", "", 1), failure("runtime", "no", "", 22), failure("runtime", "no", "", 333)}, time.Second, []string{"no"}},
		{
			"an event and a pass tell it too",
			[]Entry{failure("runtime", "no", "", 1), failure("event", "Failed", "Error: ", 1), failure("worker", "pass failed", "sync pod a/b: ", 1)}, 0,
			[]string{"no"},
		},
		{"after a while", []Entry{failure("runtime", "no", "", 1), failure("runtime", "no", "", 2), failure("runtime", "no", "", 3)}, 6 * time.Minute, []string{"no", "no again=1"}},
		{"another decision of the component", []Entry{failure("runtime", "no", "", 1), failure("runtime", "neither", "", 1)}, 0, []string{"no", "neither"}},
		{"a verdict of a probe", []Entry{failure("event", "Unhealthy", "", 1), failure("event", "Unhealthy", "", 1), failure("probe", "failure", "", 1)}, 0, []string{"Unhealthy", "failure"}},
		{"another error", []Entry{{Subject: web, Decision: "no", Error: "x"}, {Subject: web, Decision: "no", Error: "y"}}, 0, []string{"no", "no"}},
		{"another pod", []Entry{{Subject: web, Decision: "no", Error: "x"}, {Subject: db, Decision: "no", Error: "x"}}, 0, []string{"no", "no"}},
		{
			"another container",
			[]Entry{{Subject: web, Decision: "no", Container: "a", Error: "x"}, {Subject: web, Decision: "no", Container: "b", Error: "x"}}, 0,
			[]string{"no", "no"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out strings.Builder
			j := New(slog.New(slog.NewTextHandler(&out, nil)))
			at := time.Now()
			for _, e := range tc.entries {
				e.Time = at
				j.Record(e)
				at = at.Add(tc.after)
			}
			var got []string
			for line := range strings.Lines(out.String()) {
				m := regexp.MustCompile(`msg="?([^"=]+?)"? pod=.*?(?: (again=\d+).*)?$`).FindStringSubmatch(strings.TrimSpace(line))
				got = append(got, strings.TrimSpace(m[1]+" "+m[2]))
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got  %q\nwant %q\n%s", got, tc.want, out.String())
			}
		})
	}
}

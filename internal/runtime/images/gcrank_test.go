package images

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestComputeVerdicts(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	const minAge = 2 * time.Minute
	for name, tt := range map[string]struct {
		seen  seenImage
		e     evidence
		rules rules
		want  Fate
	}{
		"unused":                            {rules: rules{minAge: minAge}, want: Unused},
		"at the minimum age":                {seen: seenImage{first: ago(minAge)}, rules: rules{minAge: minAge}, want: Unused},
		"below it":                          {seen: seenImage{first: ago(minAge - 1)}, rules: rules{minAge: minAge}, want: Young},
		"below it, by hand":                 {seen: seenImage{first: ago(0)}, want: Unused},
		"in use, pinned and all":            {seen: seenImage{pinned: true, first: now}, e: evidence{users: map[string][]string{"a": {"n/p/c"}}, ahead: map[string]bool{"a": true}}, rules: rules{minAge: minAge, keepUnrecorded: true}, want: InUse},
		"pinned, looked ahead and all":      {seen: seenImage{pinned: true, first: now}, e: evidence{ahead: map[string]bool{"a": true}}, rules: rules{minAge: minAge, keepUnrecorded: true}, want: Pinned},
		"looked ahead, brought, young":      {seen: seenImage{first: now}, e: evidence{ahead: map[string]bool{"a": true}}, rules: rules{minAge: minAge, keepUnrecorded: true}, want: LookedAhead},
		"brought, young":                    {seen: seenImage{first: now}, rules: rules{minAge: minAge, keepUnrecorded: true}, want: NotPulled},
		"pulled by the agent":               {e: evidence{recorded: map[string]bool{"a": true}}, rules: rules{minAge: minAge, keepUnrecorded: true}, want: Unused},
		"brought, where that does not tell": {rules: rules{minAge: minAge}, want: Unused},
	} {
		t.Run(name, func(t *testing.T) {
			tt.seen.id, tt.rules.now = "a", now
			if tt.seen.first.IsZero() {
				tt.seen.first = ago(time.Hour)
			}
			got := computeVerdicts(map[string]seenImage{"a": tt.seen}, tt.e, tt.rules)
			if len(got) != 1 || got[0].Fate != tt.want {
				t.Errorf("got %+v, want %s", got, tt.want)
			}
		})
	}
}

// Every image has a verdict, the ones that go first in front.
func TestOrderOfVerdicts(t *testing.T) {
	at := func(n int) time.Time { return time.Date(2026, 1, 2, 3, n, 0, 0, time.UTC) }
	seen := map[string]seenImage{
		"used now": {first: at(1), lastUsed: at(9)}, "used before": {first: at(8), lastUsed: at(8)},
		"new": {first: at(7)}, "old": {first: at(2)}, "old too": {first: at(2)},
	}
	for id, i := range seen {
		i.id = id
		seen[id] = i
	}
	var got []string
	for _, v := range computeVerdicts(seen, evidence{}, rules{now: at(10)}) {
		got = append(got, v.ID+v.idleSince.Format(" 04"))
	}
	if want := []string{"old 02", "old too 02", "new 07", "used before 08", "used now 09"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The event stays short, however many images go and however they are called.
func TestMessageOfACollection(t *testing.T) {
	var c collection
	for i := range 2000 {
		c.add(&Verdict{ID: "x", Names: []string{strings.Repeat("ö", 5000)}, Size: 1 << 20}, []string{"to free disk space", "for fun"}[i%2])
	}
	long := strings.Repeat("ö", nameLength/2) + "..."
	if got, want := c.String(), fmt.Sprintf("Removed 2000 unused images (2.0 GiB) to free disk space and for fun: %s, %s, %s and 1997 more", long, long, long); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	c = collection{}
	c.add(&Verdict{ID: "sha256:1", Size: 5}, "to free disk space")
	if got, want := c.String(), "Removed 1 unused image (5 B) to free disk space: sha256:1"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

package devicemanager

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/resources/topologymanager"
)

func words(s string) []string { return strings.Fields(s) }

// Devices a* lie near node 0, b* near node 1, ab* near both, n* near none.
func nodesOf(ids ...string) map[string]topologymanager.Nodes {
	out := map[string]topologymanager.Nodes{}
	for _, id := range ids {
		for _, c := range id {
			switch c {
			case 'a':
				out[id] |= 1
			case 'b':
				out[id] |= 2
			}
		}
	}
	return out
}

func TestChoose(t *testing.T) {
	for name, tc := range map[string]struct {
		count          int
		free, reusable string
		near           topologymanager.Nodes
		prefers        string
		want           string
		asked          string // available / must
	}{
		"any":                                  {count: 2, free: "a1 b1 n1", want: "a1 b1", asked: "a1 b1 n1/"},
		"preferred":                            {count: 2, free: "a1 b1 n1", prefers: "n1 b1 a1", want: "n1 b1", asked: "a1 b1 n1/"},
		"preferred, but not there":             {count: 2, free: "a1 b1 n1", prefers: "x n1 n1", want: "n1 a1", asked: "a1 b1 n1/"},
		"near":                                 {count: 1, free: "a1 b1 n1", near: 2, want: "b1"},
		"near, more than needed":               {count: 1, free: "a1 b1 b2 n1", near: 2, want: "b1", asked: "b1 b2/"},
		"near, more than needed, preferred":    {count: 1, free: "a1 b1 b2 n1", near: 2, prefers: "a1 b2", want: "b2", asked: "b1 b2/"},
		"near two":                             {count: 3, free: "a1 ab1 b1 n1", near: 2, want: "ab1 b1 a1", asked: "ab1 b1 a1 n1/ab1 b1"},
		"not enough near: far before nowhere":  {count: 3, free: "a1 b1 n1 n2", near: 1, want: "a1 b1 n1", asked: "a1 b1 n1 n2/a1"},
		"not enough near, preferred":           {count: 2, free: "a1 b1 n1 n2", near: 1, prefers: "a1 n2", want: "a1 n2", asked: "a1 b1 n1 n2/a1"},
		"reused":                               {count: 2, free: "a1", reusable: "b1 b2", near: 1, want: "b1 b2"},
		"reused, near first":                   {count: 1, free: "a1", reusable: "a2 b2", near: 2, want: "b2"},
		"reused, and more":                     {count: 2, free: "a1 a3", reusable: "b1", near: 1, prefers: "b1 a3", want: "b1 a3", asked: "b1 a1 a3/b1"},
		"reused, and more from everywhere":     {count: 3, free: "a1 b1 n1", reusable: "n2", want: "n2 a1 b1", asked: "n2 a1 b1 n1/n2"},
		"a preference of more than is needed":  {count: 1, free: "n1 n2 n3", prefers: "n3 n2 n1", want: "n3", asked: "n1 n2 n3/"},
		"all there is, and nobody to be asked": {count: 2, free: "a1 a2", near: 1, want: "a1 a2"},
	} {
		t.Run(name, func(t *testing.T) {
			w := candidates{count: tc.count, free: words(tc.free), reusable: words(tc.reusable), near: tc.near, nodes: nodesOf(words(tc.free + " " + tc.reusable)...)}
			asked := ""
			got := w.choose(func(q preferenceRequest) []string {
				if q.size != tc.count {
					t.Errorf("asked for %d", q.size)
				}
				asked = strings.Join(q.available, " ") + "/" + strings.Join(q.must, " ")
				return words(tc.prefers)
			})
			if diff := cmp.Diff(words(tc.want), got); diff != "" {
				t.Errorf("chosen (-want +got):\n%s", diff)
			}
			if asked != tc.asked {
				t.Errorf("asked %q, want %q", asked, tc.asked)
			}
		})
	}
}

func TestHints(t *testing.T) {
	hint := func(n topologymanager.Nodes) topologymanager.Hint {
		return topologymanager.Hint{Nodes: n, Preferred: true}
	}
	far := func(n topologymanager.Nodes) topologymanager.Hint { return topologymanager.Hint{Nodes: n} }
	for name, tc := range map[string]struct {
		request             int
		all, free, reusable string
		want                []topologymanager.Hint
	}{
		"no topology":               {request: 1, all: "n1 n2", free: "n1 n2"},
		"no devices":                {request: 1},
		"either":                    {request: 1, all: "a1 b1", free: "a1 b1", want: []topologymanager.Hint{hint(1), hint(2), far(3)}},
		"both":                      {request: 2, all: "a1 b1", free: "a1 b1", want: []topologymanager.Hint{hint(3)}},
		"one node is full":          {request: 2, all: "a1 a2 b1 b2", free: "a1 b1 b2", want: []topologymanager.Hint{hint(2), far(3)}},
		"each is full by one":       {request: 2, all: "a1 a2 b1 b2", free: "a1 b1", want: []topologymanager.Hint{far(3)}},
		"near both counts for each": {request: 1, all: "ab1", free: "ab1", want: []topologymanager.Hint{hint(1), hint(2), far(3)}},
		"not enough":                {request: 3, all: "a1 b1", free: "a1 b1", want: []topologymanager.Hint{}},
		"what is reused binds":      {request: 1, all: "a1 b1", free: "a1", reusable: "b1", want: []topologymanager.Hint{hint(2), far(3)}},
		"reused, and more":          {request: 2, all: "a1 b1 b2", free: "a1 b2", reusable: "b1", want: []topologymanager.Hint{hint(2), far(3)}},
		"only with those nowhere":   {request: 2, all: "a1 n1", free: "a1 n1"},
		"reused from nowhere":       {request: 1, all: "a1 b1 n1", free: "a1", reusable: "n1", want: []topologymanager.Hint{hint(1), far(3)}},
	} {
		t.Run(name, func(t *testing.T) {
			masks := func(s string) (out []topologymanager.Nodes) {
				for _, id := range words(s) {
					out = append(out, nodesOf(id)[id])
				}
				return out
			}
			got := supply{tc.request, masks(tc.all), masks(tc.free), masks(tc.reusable)}.hints()
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("hints (-want +got):\n%s", diff)
			}
		})
	}
}

// A plugin with devices near very many nodes costs no more than it is worth.
func TestHintsOfManyNodes(t *testing.T) {
	var s supply
	s.request = 1
	for n := range maxNodes {
		s.all = append(s.all, 1<<n)
	}
	s.free = s.all
	if got := s.hints(); got != nil {
		t.Errorf("%d hints", len(got))
	}
	s.all = s.all[:hostsLimit]
	s.free = s.all
	if got := s.hints(); len(got) != 1<<hostsLimit-1 {
		t.Errorf("%d hints of %d nodes", len(got), hostsLimit)
	}
}

func TestChoicesAreExplained(t *testing.T) {
	for want, w := range map[string]candidates{
		"it asks for 2; healthy and free are a, b":                                                                {count: 2, free: words("a b")},
		"it asks for 1; healthy and free are none; c are those of init containers before it":                      {count: 1, reusable: words("c")},
		"it asks for 2; healthy and free are a; b are those of init containers before it; NUMA nodes wanted: {1}": {count: 2, free: words("a"), reusable: words("b"), near: 0b10},
	} {
		if got := w.explain(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

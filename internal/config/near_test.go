package config

import "testing"

func TestEditDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "ab", 2}, {"ab", "", 2}, {"web", "web", 0}, {"web", "wbe", 1}, {"abc", "cab", 2}, {"hello", "hallo", 1}, {"kitten", "sitting", 3}} {
		if got := EditDistance(c.a, c.b); got != c.want {
			t.Errorf("%q to %q: got %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

func TestNearest(t *testing.T) {
	known := []string{"max-pods", "node-labels", "kubeconfig", "v"}
	for name, want := range map[string]string{
		"max-pod": "max-pods", "Max-Pods": "max-pods", "mxa-pods": "max-pods", "node-label": "node-labels", "kubeconfg": "kubeconfig", "something-else": "", "x": "v",
	} {
		if got := Nearest(name, known); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", name, got, want)
		}
	}
}

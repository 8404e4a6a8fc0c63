package pod

import "testing"

func TestExpand(t *testing.T) {
	values := map[string]string{"A": "1", "EMPTY": ""}
	lookup := func(name string) (string, bool) { v, ok := values[name]; return v, ok }
	for in, want := range map[string]string{
		"plain": "plain", "$(A)": "1", "x$(A)y$(A)": "x1y1", "$(EMPTY)": "", "$(NO)": "$(NO)", "$$(A)": "$(A)", "$$$(A)": "$1", "$": "$", "$(A": "$(A", "$A": "$A", "a$$": "a$",
	} {
		if got := Expand(in, lookup); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

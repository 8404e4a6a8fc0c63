package kubetest

import (
	"strings"
	"testing"
)

func TestWhatATargetLacksMustFail(t *testing.T) {
	for name, test := range map[string]struct {
		run  func(*contract)
		want string // how the error begins; "" is none
	}{
		"it holds":  {func(*contract) {}, "the target lacks this clause (why)"},
		"an error":  {func(c *contract) { c.Errorf("no") }, ""},
		"its end":   {func(c *contract) { c.Fatal("no") }, ""},
		"its panic": {func(*contract) { panic("no") }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			outer := &recorder{TB: t}
			clause{"X", test.run}.hold(&contract{TB: outer, Target: Target{Lacks: map[string]string{"X": "why"}}})
			got, failed := outer.first()
			if failed != (test.want != "") || !strings.HasPrefix(got, test.want) {
				t.Errorf("failed: %v with %q, want %q", failed, got, test.want)
			}
		})
	}
}

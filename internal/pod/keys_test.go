package pod_test

import (
	"fmt"
	"testing"

	"berth/internal/pod"
)

func TestListKeys(t *testing.T) {
	many := map[string]string{}
	for i := range 12 {
		many[fmt.Sprintf("k%02d", i)] = ""
	}
	for want, keys := range map[string]map[string]string{
		"it has no keys":      nil,
		"it has colour, size": {"size": "7", "colour": "red"},
		"it has k00, k01, k02, k03, k04, k05, k06, k07, k08, k09 and 2 more": many,
	} {
		if got := pod.ListKeys(keys); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

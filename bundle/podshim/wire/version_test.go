package wire

import (
	"os"
	"regexp"
	"testing"
)

// Pod shims are tested with the containerd of the bundle.
func TestTheContainerdOfTheBundle(t *testing.T) {
	version := regexp.MustCompile(`github\.com/containerd/containerd/v2 (v\S+)`)
	var found []string
	for _, file := range []string{"../go.mod", "../../go.mod"} {
		b, err := os.ReadFile(file)
		m := version.FindSubmatch(b)
		if err != nil || m == nil {
			t.Fatalf("%s: %v, no version of containerd", file, err)
		}
		found = append(found, string(m[1]))
	}
	if found[0] != found[1] {
		t.Errorf("containerd is %s here, and %s in the bundle", found[0], found[1])
	}
}

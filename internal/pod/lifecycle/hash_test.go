package lifecycle

import (
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestContainerHash(t *testing.T) {
	vector := v1.Container{Name: "test_container", Image: "foo/image:v1"}
	if got, want := ContainerHash(&vector), "8e45cbd0"; got != want {
		t.Errorf("hash of the known vector is %s, want %s", got, want)
	}
	same := vector
	same.Command, same.Env = []string{"sh"}, []v1.EnvVar{{Name: "A", Value: "b"}}
	if ContainerHash(&same) != ContainerHash(&vector) {
		t.Error("the hash depends on more than name and image")
	}
	for _, other := range []v1.Container{{Name: "other", Image: vector.Image}, {Name: vector.Name, Image: "foo/image:v2"}} {
		if ContainerHash(&other) == ContainerHash(&vector) {
			t.Errorf("%s with %s has the same hash", other.Name, other.Image)
		}
	}
}

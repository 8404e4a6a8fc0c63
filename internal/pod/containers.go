package pod

import (
	"iter"

	v1 "k8s.io/api/core/v1"
)

// Containers yields a pod's init containers and then its regular ones, each in the order of the
// spec, without ephemeral containers.
func Containers(spec *v1.PodSpec) iter.Seq[*v1.Container] {
	return func(yield func(*v1.Container) bool) {
		for _, list := range [][]v1.Container{spec.InitContainers, spec.Containers} {
			for i := range list {
				if !yield(&list[i]) {
					return
				}
			}
		}
	}
}

// FindContainer returns the init or regular container of that name, or nil.
func FindContainer(spec *v1.PodSpec, name string) *v1.Container {
	for c := range Containers(spec) {
		if c.Name == name {
			return c
		}
	}
	return nil
}

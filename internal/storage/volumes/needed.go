package volumes

import (
	"fmt"
	"iter"
	"reflect"
	"strings"

	v1 "k8s.io/api/core/v1"

	"berth/internal/runtime/crispec"
)

// neededVolumes returns the names of the volumes that a container mounts, uses as a device or reads
// variables from. Other volumes are neither set up nor waited for, nor are images, which the
// runtime mounts.
func neededVolumes(p *v1.Pod) map[string]bool {
	needed := map[string]bool{}
	for _, c := range containersOf(p) {
		for _, m := range c.VolumeMounts {
			needed[m.Name] = true
		}
		for _, d := range c.VolumeDevices {
			needed[d.Name] = true
		}
		for _, f := range crispec.EnvFiles(c) {
			needed[f.Volume] = true
		}
	}
	for i := range p.Spec.Volumes {
		if p.Spec.Volumes[i].Image != nil {
			delete(needed, p.Spec.Volumes[i].Name)
		}
	}
	return needed
}

// Unsupported returns the unsupported volume features of the pod, one line each, prefixed with the
// field path. An empty result means that Setup supports all volumes that the pod's containers use.
func Unsupported(p *v1.Pod) []string {
	var out []string
	add := func(path, format string, args ...any) {
		out = append(out, path+": "+fmt.Sprintf(format, args...))
	}
	needed := neededVolumes(p)
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if !needed[v.Name] {
			continue
		}
		source := (&volume{spec: v}).source()
		path := fmt.Sprintf("spec.volumes[%d].%s", i, source)
		if _, known := kinds[source]; !known {
			add(path, "volume %q: volumes of this type are not supported yet", v.Name)
		} else if v.EmptyDir != nil && !isKnownMedium(v.EmptyDir.Medium) {
			add(path+".medium", "volume %q: medium %q is not known", v.Name, v.EmptyDir.Medium)
		}
	}
	return out
}

// sourceName returns the API field of the source of a volume or persistent volume, "" if there is
// none.
func sourceName(s any) string {
	v := reflect.ValueOf(s).Elem()
	for i := range v.NumField() {
		if !v.Field(i).IsNil() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			return name
		}
	}
	return ""
}

// containersOf iterates over all containers of the pod, each with the path of its field.
func containersOf(p *v1.Pod) iter.Seq2[string, *v1.Container] {
	return func(yield func(string, *v1.Container) bool) {
		for i := range p.Spec.InitContainers {
			if !yield(fmt.Sprintf("spec.initContainers[%d]", i), &p.Spec.InitContainers[i]) {
				return
			}
		}
		for i := range p.Spec.Containers {
			if !yield(fmt.Sprintf("spec.containers[%d]", i), &p.Spec.Containers[i]) {
				return
			}
		}
		for i := range p.Spec.EphemeralContainers {
			c := v1.Container(p.Spec.EphemeralContainers[i].EphemeralContainerCommon)
			if !yield(fmt.Sprintf("spec.ephemeralContainers[%d]", i), &c) {
				return
			}
		}
	}
}

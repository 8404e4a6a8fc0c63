package volumes

import (
	"fmt"
	"iter"
	"reflect"
	"strings"

	v1 "k8s.io/api/core/v1"

	"berth/internal/crispec"
)

// neededVolumes returns the names of the volumes that some container mounts, uses as a device or takes variables from. Others are neither set
// up nor waited for; nor are images, which the runtime mounts.
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

// Unsupported returns what the pod asks of volumes that this version does not do, one line each, led by the path of the field. An
// empty result means that Setup knows every volume that the pod's containers use.
func Unsupported(p *v1.Pod) []string {
	var out []string
	add := func(path, format string, args ...any) {
		out = append(out, path+": "+fmt.Sprintf(format, args...))
	}
	needed := neededVolumes(p)
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		path := fmt.Sprintf("spec.volumes[%d]", i)
		src, isEmptyDir := emptyDirOf(v)
		_, isPayload := payloadKindOf(v)
		switch {
		case !needed[v.Name] || v.HostPath != nil:
		case isPayload, v.PersistentVolumeClaim != nil, v.Ephemeral != nil, v.NFS != nil, v.CSI != nil:
		case !isEmptyDir:
			add(path+"."+sourceName(&v.VolumeSource), "volume %q: volumes of this type are not supported yet", v.Name)
		case !knownMedium(src.Medium):
			add(path+".emptyDir.medium", "volume %q: medium %q is not known", v.Name, src.Medium)
		}
	}
	return out
}

// emptyDirOf returns the volume's source if it is an emptyDir; a volume without any source is one (Kubernetes API, Volume).
func emptyDirOf(v *v1.Volume) (*v1.EmptyDirVolumeSource, bool) {
	if v.VolumeSource == (v1.VolumeSource{}) {
		return &v1.EmptyDirVolumeSource{}, true
	}
	return v.EmptyDir, v.EmptyDir != nil
}

// sourceName returns the field of the API that the source of a volume, or of a persistent one, is in, "" when there is none.
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

// containersOf yields all containers of the pod, each with the path of its field.
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

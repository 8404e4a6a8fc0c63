package volumes

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"berth/internal/pod"
	"berth/internal/runtime/crispec"
)

// addDownward adds fields and resources of the pod (Kubernetes documentation, "Downward API").
func (r *reader) addDownward(to payload, p *v1.Pod, items []v1.DownwardAPIVolumeFile, mode *int32) error {
	var errs []error
	for i := range items {
		item := &items[i]
		value, err := r.downwardValue(p, item)
		if err == nil {
			err = to.add(item.Path, content{data: []byte(value), mode: fileMode(item.Mode, mode)})
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return utilerrors.NewAggregate(errs)
}

func (r *reader) downwardValue(p *v1.Pod, item *v1.DownwardAPIVolumeFile) (string, error) {
	switch {
	case item.FieldRef != nil:
		if value, ok := crispec.MetadataField(p, item.FieldRef.FieldPath); ok {
			return value, nil
		}
		return "", fmt.Errorf("unsupported fieldPath: %v", item.FieldRef.FieldPath)
	case item.ResourceFieldRef != nil:
		c := pod.FindContainer(&p.Spec, item.ResourceFieldRef.ContainerName)
		if c == nil {
			return "", fmt.Errorf("container %s not found", item.ResourceFieldRef.ContainerName)
		}
		var allocatable v1.ResourceList
		if node, known := r.node(); known {
			allocatable = node.Status.Allocatable
		}
		return crispec.ResourceField(p, c, item.ResourceFieldRef, allocatable)
	}
	return "", fmt.Errorf("file %q shows neither a field nor a resource", item.Path)
}

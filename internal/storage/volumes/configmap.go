package volumes

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"berth/internal/pod"
)

func (r *reader) addConfigMap(ctx context.Context, to payload, p *v1.Pod, name string, j projection) error {
	object, err := r.objects.ConfigMap(ctx, p.Namespace, name)
	if apierrors.IsNotFound(err) && j.optional {
		return nil
	}
	if err != nil {
		return err
	}
	data := make(map[string][]byte, len(object.Data)+len(object.BinaryData))
	for key, value := range object.Data {
		data[key] = []byte(value)
	}
	for key, value := range object.BinaryData {
		data[key] = value
	}
	return to.addKeys(data, j, func(key string) error {
		return fmt.Errorf("configmap references non-existent config key: %s: %s", key, pod.ListKeys(data))
	})
}

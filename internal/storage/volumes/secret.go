package volumes

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func (r *reader) addSecret(ctx context.Context, to payload, p *v1.Pod, name string, j projection) error {
	object, err := r.objects.Secret(ctx, p.Namespace, name)
	if apierrors.IsNotFound(err) && j.optional {
		return nil
	}
	if err != nil {
		return err
	}
	return to.addKeys(object.Data, j, func(key string) error { return fmt.Errorf("references non-existent secret key: %s", key) })
}

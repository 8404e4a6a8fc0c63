package kuberuntime

import (
	"context"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"berth/internal/runtime/crispec"
)

// Objects reads the API objects that sandboxes and container environments are made from.
type Objects interface {
	// ConfigMap returns the newest copy, which must not be modified, or a NotFound error of the
	// API.
	ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error)
	// Secret is like ConfigMap.
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
	// Services returns the services for the pod's environment variables, or those of more
	// namespaces.
	Services(ctx context.Context, p *v1.Pod) ([]*v1.Service, error)
	// RuntimeHandler returns the handler of the pod's RuntimeClass.
	RuntimeHandler(ctx context.Context, p *v1.Pod) (string, error)
}

type environments struct {
	objects     Objects
	allocatable func() v1.ResourceList
}

// read reads what the container's variables refer to. Missing objects are left out: whether a
// reference is optional is decided where it is used.
func (r *environments) read(ctx context.Context, p *v1.Pod, c *v1.Container) (crispec.Environment, error) {
	e := crispec.Environment{
		ConfigMaps: map[string]*v1.ConfigMap{}, Secrets: map[string]*v1.Secret{}, Allocatable: r.allocatable(),
	}
	var err error
	if e.Services, err = r.objects.Services(ctx, p); err != nil {
		return e, err
	}
	configMap := func(name string) error {
		return readOnce(ctx, p.Namespace, name, e.ConfigMaps, r.objects.ConfigMap)
	}
	secret := func(name string) error { return readOnce(ctx, p.Namespace, name, e.Secrets, r.objects.Secret) }
	for i := range c.EnvFrom {
		f := &c.EnvFrom[i]
		if f.ConfigMapRef != nil {
			err = configMap(f.ConfigMapRef.Name)
		}
		if err == nil && f.SecretRef != nil {
			err = secret(f.SecretRef.Name)
		}
		if err != nil {
			return e, err
		}
	}
	for i := range c.Env {
		f := c.Env[i].ValueFrom
		if f != nil && f.ConfigMapKeyRef != nil {
			err = configMap(f.ConfigMapKeyRef.Name)
		}
		if err == nil && f != nil && f.SecretKeyRef != nil {
			err = secret(f.SecretKeyRef.Name)
		}
		if err != nil {
			return e, err
		}
	}
	return e, nil
}

// readOnce adds the object to known unless it was read already: a container gets all its variables
// from one version of it. An object that does not exist is stored as nil.
func readOnce[T any](
	ctx context.Context, namespace, name string, known map[string]*T, get func(ctx context.Context, namespace, name string) (*T, error),
) error {
	if _, read := known[name]; read {
		return nil
	}
	object, err := get(ctx, namespace, name)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	known[name] = object
	return nil
}

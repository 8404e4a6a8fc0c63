package kuberuntime

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
)

// apiObjects has the ConfigMap "cm" and the Secret "s", and notes what is read.
type apiObjects struct {
	reads []string
	err   error
}

func (o *apiObjects) ConfigMap(_ context.Context, namespace, name string) (*v1.ConfigMap, error) {
	o.reads = append(o.reads, "configmap "+namespace+"/"+name)
	if o.err == nil && name == "cm" {
		return &v1.ConfigMap{}, nil
	}
	return nil, o.or(apierrors.NewNotFound(v1.Resource("configmap"), name))
}

func (o *apiObjects) Secret(_ context.Context, namespace, name string) (*v1.Secret, error) {
	o.reads = append(o.reads, "secret "+namespace+"/"+name)
	if o.err == nil && name == "s" {
		return &v1.Secret{}, nil
	}
	return nil, o.or(apierrors.NewNotFound(v1.Resource("secret"), name))
}

func (o *apiObjects) Services(context.Context, *v1.Pod) ([]*v1.Service, error) {
	return []*v1.Service{{}}, o.err
}

func (o *apiObjects) RuntimeHandler(_ context.Context, p *v1.Pod) (string, error) {
	if name := *p.Spec.RuntimeClassName; name != "strong" {
		return "", fmt.Errorf("RuntimeClass %q not found", name)
	}
	return "kata", o.err
}

func (o *apiObjects) or(err error) error {
	if o.err != nil {
		return o.err
	}
	return err
}

func TestEnvironmentOfObjects(t *testing.T) {
	local := func(name string) v1.LocalObjectReference { return v1.LocalObjectReference{Name: name} }
	configMapKey := v1.EnvVar{ValueFrom: &v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: local("cm")}}}
	secretKey := v1.EnvVar{ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: local("s")}}}
	p := &v1.Pod{}
	p.Namespace = "ns"
	c := &v1.Container{
		EnvFrom: []v1.EnvFromSource{
			{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: local("cm")}},
			{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: local("no")}},
			{SecretRef: &v1.SecretEnvSource{LocalObjectReference: local("s")}},
			{SecretRef: &v1.SecretEnvSource{LocalObjectReference: local("no")}},
		},
		Env: []v1.EnvVar{{Name: "plain"}, configMapKey, secretKey},
	}
	o := &apiObjects{}
	allocatable := func() v1.ResourceList { return v1.ResourceList{"cpu": resource.MustParse("2")} }
	r := &environments{objects: o, allocatable: allocatable}
	e, err := r.read(t.Context(), p, c)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"configmap ns/cm", "configmap ns/no", "secret ns/s", "secret ns/no"}; !slices.Equal(o.reads, want) {
		t.Errorf("read %v, want each once", o.reads)
	}
	if e.ConfigMaps["cm"] == nil || e.ConfigMaps["no"] != nil || e.Secrets["s"] == nil || e.Secrets["no"] != nil || len(e.Services) != 1 || e.Allocatable.Cpu().Value() != 2 {
		t.Errorf("got %+v", e)
	}

	o.err = errors.New("no answer")
	if _, err := r.read(t.Context(), p, c); !errors.Is(err, o.err) {
		t.Errorf("got %v", err)
	}
}

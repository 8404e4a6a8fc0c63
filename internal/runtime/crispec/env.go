package crispec

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
)

// Environment holds the sources of a container's variables besides its pod.
type Environment struct {
	// ConfigMaps and Secrets of the pod's namespace by name. Missing entries do not exist.
	ConfigMaps map[string]*v1.ConfigMap
	Secrets    map[string]*v1.Secret
	// Files are the contents of the files that EnvFiles returns. Missing entries do not exist.
	Files map[EnvFile][]byte
	// Services are at least those of the pod's namespace and of the namespace "default".
	Services []*v1.Service
	// Allocatable are the node's allocatable resources, the default for unset limits.
	Allocatable v1.ResourceList
}

// variables are environment variables in the order in which they were first set.
type variables struct {
	values map[string]string
	order  []string
}

func (v *variables) set(name, value string) {
	if _, ok := v.values[name]; !ok {
		v.order = append(v.order, name)
	}
	v.values[name] = value
}

// environment resolves the container's variables: envFrom, then env in order, whose entries may
// refer to earlier ones and to service variables, then the service variables that are not defined
// yet.
func environment(in Container) ([]*runtimeapi.KeyValue, map[string]string, error) {
	vars := variables{values: make(map[string]string, len(in.Container.Env))}
	for i := range in.Container.EnvFrom {
		if err := vars.addAll(in, &in.Container.EnvFrom[i]); err != nil {
			return nil, nil, err
		}
	}
	services := serviceVariables(in.Pod, in.Environment.Services)
	lookup := func(name string) (string, bool) {
		if v, ok := vars.values[name]; ok {
			return v, true
		}
		v, ok := services[name]
		return v, ok
	}
	for i := range in.Container.Env {
		e := &in.Container.Env[i]
		if e.ValueFrom == nil {
			vars.set(e.Name, pod.Expand(e.Value, lookup))
			continue
		}
		value, ok, err := valueFrom(in, e)
		if err != nil {
			return nil, nil, err
		}
		if ok {
			vars.set(e.Name, value)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(services)) {
		if _, ok := vars.values[name]; !ok {
			vars.set(name, services[name])
		}
	}
	out := make([]*runtimeapi.KeyValue, 0, len(vars.order))
	for _, name := range vars.order {
		out = append(out, &runtimeapi.KeyValue{Key: name, Value: []byte(vars.values[name])})
	}
	return out, vars.values, nil
}

// addAll sets a variable for each key of the object.
func (v *variables) addAll(in Container, from *v1.EnvFromSource) error {
	switch {
	case from.ConfigMapRef != nil:
		m, err := findConfigMap(in, from.ConfigMapRef.Name, from.ConfigMapRef.Optional)
		if m == nil {
			return err
		}
		for _, key := range slices.Sorted(maps.Keys(m.Data)) {
			v.set(from.Prefix+key, m.Data[key])
		}
	case from.SecretRef != nil:
		s, err := findSecret(in, from.SecretRef.Name, from.SecretRef.Optional)
		if s == nil {
			return err
		}
		for _, key := range slices.Sorted(maps.Keys(s.Data)) {
			v.set(from.Prefix+key, string(s.Data[key]))
		}
	}
	return nil
}

// valueFrom returns the value of a variable with valueFrom; ok is false if it is optional and
// missing.
func valueFrom(in Container, e *v1.EnvVar) (value string, ok bool, err error) {
	switch f := e.ValueFrom; {
	case f.FieldRef != nil:
		value, err = fieldValue(in, f.FieldRef.FieldPath)
	case f.ResourceFieldRef != nil:
		value, err = resourceOf(in, f.ResourceFieldRef)
	case f.ConfigMapKeyRef != nil:
		return configMapValue(in, f.ConfigMapKeyRef)
	case f.SecretKeyRef != nil:
		return secretValue(in, f.SecretKeyRef)
	case f.FileKeyRef != nil:
		value, ok, err = fileValue(in, f.FileKeyRef)
		if err == nil {
			return value, ok, nil
		}
	default:
		err = errors.New("valueFrom names no source that is known")
	}
	if err != nil {
		return "", false, fmt.Errorf("env %q: %w", e.Name, err)
	}
	return value, true, nil
}

func configMapValue(in Container, ref *v1.ConfigMapKeySelector) (string, bool, error) {
	m, err := findConfigMap(in, ref.Name, ref.Optional)
	if m == nil {
		return "", false, err
	}
	if value, ok := m.Data[ref.Key]; ok {
		return value, true, nil
	}
	if isTrue(ref.Optional) {
		return "", false, nil
	}
	return "", false, fmt.Errorf("couldn't find key %v in ConfigMap %v/%v: %s", ref.Key, in.Pod.Namespace, ref.Name, pod.ListKeys(m.Data))
}

func secretValue(in Container, ref *v1.SecretKeySelector) (string, bool, error) {
	s, err := findSecret(in, ref.Name, ref.Optional)
	if s == nil {
		return "", false, err
	}
	if value, ok := s.Data[ref.Key]; ok {
		return string(value), true, nil
	}
	if isTrue(ref.Optional) {
		return "", false, nil
	}
	return "", false, fmt.Errorf("couldn't find key %v in Secret %v/%v", ref.Key, in.Pod.Namespace, ref.Name)
}

// findConfigMap returns nil without an error if an optional ConfigMap is missing.
func findConfigMap(in Container, name string, optional *bool) (*v1.ConfigMap, error) {
	if m := in.Environment.ConfigMaps[name]; m != nil || isTrue(optional) {
		return m, nil
	}
	return nil, fmt.Errorf("configmap %q not found", name)
}

// findSecret returns nil without an error if an optional Secret is missing.
func findSecret(in Container, name string, optional *bool) (*v1.Secret, error) {
	if s := in.Environment.Secrets[name]; s != nil || isTrue(optional) {
		return s, nil
	}
	return nil, fmt.Errorf("secret %q not found", name)
}

// fieldValue returns a field of the pod or its node for an environment variable (Kubernetes
// documentation, "Downward API").
func fieldValue(in Container, path string) (string, error) {
	p := in.Pod
	switch path {
	case "spec.nodeName":
		return p.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return p.Spec.ServiceAccountName, nil
	case "status.hostIP":
		return first(OnePerFamily(in.HostIPs, nil)), nil
	case "status.hostIPs":
		return strings.Join(OnePerFamily(in.HostIPs, nil), ","), nil
	case "status.podIP":
		return first(OnePerFamily(in.PodIPs, in.HostIPs)), nil
	case "status.podIPs":
		return strings.Join(OnePerFamily(in.PodIPs, in.HostIPs), ","), nil
	}
	if value, ok := MetadataField(p, path); ok {
		return value, nil
	}
	return "", fmt.Errorf("fieldPath %q is not a field that a container can be given", path)
}

// MetadataField returns a field of the pod's metadata for environment variables and downwardAPI
// volumes, and whether the field is supported: maps are lines of key="value", ordered by key; a
// missing map key is "".
func MetadataField(p *v1.Pod, path string) (value string, ok bool) {
	if name, key, ok := subscript(path); ok {
		switch name {
		case "metadata.labels":
			return p.Labels[key], true
		case "metadata.annotations":
			return p.Annotations[key], true
		}
		return "", false
	}
	switch path {
	case "metadata.name":
		return p.Name, true
	case "metadata.namespace":
		return p.Namespace, true
	case "metadata.uid":
		return string(p.UID), true
	case "metadata.labels":
		return formatMap(p.Labels), true
	case "metadata.annotations":
		return formatMap(p.Annotations), true
	}
	return "", false
}

func formatMap(m map[string]string) string {
	lines := make([]string, 0, len(m))
	for _, key := range slices.Sorted(maps.Keys(m)) {
		lines = append(lines, fmt.Sprintf("%s=%q", key, m[key]))
	}
	return strings.Join(lines, "\n")
}

// subscript splits "metadata.labels['key']".
func subscript(path string) (name, key string, ok bool) {
	name, rest, ok := strings.Cut(path, "['")
	if !ok {
		return "", "", false
	}
	key, ok = strings.CutSuffix(rest, "']")
	return name, key, ok
}

func first(s []string) string {
	if len(s) == 0 {
		return ""
	}
	return s[0]
}

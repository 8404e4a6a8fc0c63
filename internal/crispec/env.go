package crispec

import (
	"fmt"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// environment resolves the container's env in order; later entries may refer to earlier ones.
func environment(in Container) ([]*runtimeapi.KeyValue, map[string]string, error) {
	values := make(map[string]string, len(in.Container.Env))
	var order []string
	for i := range in.Container.Env {
		e := &in.Container.Env[i]
		value := expand(e.Value, values)
		if e.ValueFrom != nil {
			ref := e.ValueFrom.FieldRef
			if ref == nil {
				return nil, nil, fmt.Errorf("env %q: valueFrom names no field", e.Name)
			}
			var err error
			if value, err = fieldValue(in, ref.FieldPath); err != nil {
				return nil, nil, fmt.Errorf("env %q: %w", e.Name, err)
			}
		}
		if _, seen := values[e.Name]; !seen {
			order = append(order, e.Name)
		}
		values[e.Name] = value
	}
	out := make([]*runtimeapi.KeyValue, 0, len(order))
	for _, name := range order {
		out = append(out, &runtimeapi.KeyValue{Key: name, Value: []byte(values[name])})
	}
	return out, values, nil
}

// fieldValue returns a field of the pod as the downward API offers it (Kubernetes documentation, "Downward API").
func fieldValue(in Container, path string) (string, error) {
	p := in.Pod
	if name, key, ok := subscript(path); ok {
		switch name {
		case "metadata.labels":
			return p.Labels[key], nil
		case "metadata.annotations":
			return p.Annotations[key], nil
		}
	}
	switch path {
	case "metadata.name":
		return p.Name, nil
	case "metadata.namespace":
		return p.Namespace, nil
	case "metadata.uid":
		return string(p.UID), nil
	case "spec.nodeName":
		return p.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return p.Spec.ServiceAccountName, nil
	case "status.hostIP":
		return first(in.HostIPs), nil
	case "status.hostIPs":
		return strings.Join(in.HostIPs, ","), nil
	case "status.podIP":
		return first(in.PodIPs), nil
	case "status.podIPs":
		return strings.Join(in.PodIPs, ","), nil
	}
	return "", fmt.Errorf("fieldPath %q is not a field that a container can be given", path)
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

// expand replaces $(NAME) by its value, in one pass. $$ is a dollar sign; an unknown name is left as it stands.
func expand(s string, values map[string]string) string {
	if !strings.Contains(s, "$") {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '$' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		switch s[i+1] {
		case '$':
			b.WriteByte('$')
			i++
		case '(':
			end := strings.IndexByte(s[i:], ')')
			if end < 0 {
				b.WriteByte('$')
				continue
			}
			if v, ok := values[s[i+2:i+end]]; ok {
				b.WriteString(v)
			} else {
				b.WriteString(s[i : i+end+1])
			}
			i += end
		default:
			b.WriteByte('$')
		}
	}
	return b.String()
}

func expandAll(in []string, values map[string]string) []string {
	if in == nil {
		return nil
	}
	out := make([]string, len(in))
	for i := range in {
		out[i] = expand(in[i], values)
	}
	return out
}

package kuberuntime

import (
	"context"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// What runs a pod that names no RuntimeClass is decided for each, and its journal says why it is
// another one than for most.
func TestHandlerOfAPodWithoutAClass(t *testing.T) {
	plain, classed := podOf(v1.RestartPolicyAlways, "a"), podOf(v1.RestartPolicyAlways, "a")
	classed.Spec.RuntimeClassName = new("strong")
	for _, tt := range []struct {
		name         string
		pod          *v1.Pod
		handler, why string
		want, which  string
	}{
		{"the one of most pods", plain, "podshim", "", "podshim", "attempt 0, by runtime handler podshim"},
		{"another one", plain, "runc", "as it has devices", "runc", "attempt 0, by runtime handler runc, as it has devices"},
		{"that of its class", classed, "runc", "as it has devices", "kata", "attempt 0, by runtime handler kata"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSandboxes(Config{
				Objects: &apiObjects{}, Sandboxes: SandboxConfig{Handler: func(*v1.Pod) (handler, why string) { return tt.handler, tt.why }},
			}, &Runtime{}, nil)
			got, err := s.handler(context.Background(), Request{Pod: tt.pod}, &podActions{CreateSandbox: true})
			if err != nil || got != tt.want {
				t.Errorf("the handler is %q (%v), want %q", got, err, tt.want)
			}
			if which := s.which(tt.pod, 0, got); which != tt.which {
				t.Errorf("the journal says %q, want %q", which, tt.which)
			}
		})
	}
}

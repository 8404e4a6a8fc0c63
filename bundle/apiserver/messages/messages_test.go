package messages

import (
	"slices"
	"testing"
)

func TestKubectl(t *testing.T) {
	for _, c := range []struct{ argv, want []string }{
		{[]string{"kubectl", "get", "pods"}, []string{"kubectl", "get", "pods"}},
		{[]string{"/some/where/kubectl"}, []string{"/some/where/kubectl"}},
		{[]string{"apiserver", "kubectl", "get"}, []string{"kubectl", "get"}},
		{[]string{"apiserver", "--node", "kubectl"}, nil},
		{[]string{"apiserver"}, nil},
		{[]string{"kubectl-berth", "get"}, nil},
		{nil, nil},
	} {
		got, ok := Kubectl(c.argv)
		if ok != (c.want != nil) || !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, %v; want %q", c.argv, got, ok, c.want)
		}
	}
}

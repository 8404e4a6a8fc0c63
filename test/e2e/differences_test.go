//go:build e2e

package e2e

import (
	"os"
	"strconv"
	"testing"

	"berth/internal/cluster/kube"
	"berth/test/differences"
)

// withoutControllers has nobody but the tests change what is written, where there are differences
// to be found.
var withoutControllers = []string{
	"--arg", "kube-controller-manager=--controllers=serviceaccount-controller,root-ca-certificate-publisher-controller",
	"--arg", "kube-apiserver=--disable-admission-plugins=TaintNodesByCondition",
}

// TestDifferencesOfAServerAndItself sends the writes of the test of differences to one API server
// in two namespaces: what it does not answer alike would be a difference of any two servers. SEED
// and SEQUENCES, from the environment, make it another run, or a longer one.
func TestDifferencesOfAServerAndItself(t *testing.T) {
	t.Parallel()
	c := newControlPlane(t)
	c.up(withoutControllers...)
	config, err := kube.LoadKubeconfig(c.dir + "/admin.kubeconfig")
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	server := func(name string) differences.Server {
		s := differences.Server{Name: name, Config: config, Namespace: "diff-" + name}
		c.mustKubectl("", "create", "namespace", s.Namespace)
		until(t, "the service account of "+s.Namespace, func() bool {
			_, err := c.kubectl("admin", "", "get", "serviceaccount", "-n", s.Namespace, "default")
			return err == nil
		})
		return s
	}
	seed, sequences := number(t, "SEED", 1), number(t, "SEQUENCES", 150)
	got, err := differences.Run(c.ctx, differences.Config{A: server("a"), B: server("b"), Seed: seed, Sequences: int(sequences)})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("seed %d: %d requests to each", seed, got.Requests)
	for _, d := range got.Differences {
		t.Errorf("seed %d: %s", seed, d)
	}
}

// number is a variable of the environment, or what it is without one.
func number(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s=%s: %v", name, text, err)
	}
	return n
}

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"berth/internal/cluster/kube"
	"berth/internal/localapi"
	"berth/test/differences"
)

// withoutControllers has nobody but the tests change what is written, where there are differences
// to be found.
var withoutControllers = []string{
	"--arg", "kube-controller-manager=--controllers=serviceaccount-controller,root-ca-certificate-publisher-controller",
	"--arg", "kube-apiserver=--disable-admission-plugins=TaintNodesByCondition",
}

// TestDifferences sends the writes of the test of differences to one API server in two namespaces:
// what it does not answer alike would be a difference of any two servers. Then it sends them to
// that and to the local API. SEED and SEQUENCES, from the environment, make it another run, or a
// longer one.
func TestDifferences(t *testing.T) {
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
	seed, sequences := number(t, "SEED", 1), int(number(t, "SEQUENCES", 150))
	t.Run("of a server and itself", func(t *testing.T) {
		wantAlike(t, c.ctx, differences.Config{A: server("a"), B: server("b"), Seed: seed, Sequences: sequences})
	})
	t.Run("of the local API", func(t *testing.T) {
		wantAlike(t, c.ctx, differences.Config{A: server("c"), B: newLocalAPI(t, "diff-d"), Seed: seed, Sequences: sequences, Known: differences.LocalAPI})
	})
}

func wantAlike(t *testing.T, ctx context.Context, cfg differences.Config) {
	t.Helper()
	got, err := differences.Run(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("seed %d: %d requests to each, known differences: %v", cfg.Seed, got.Requests, got.Known)
	for _, d := range got.Differences {
		t.Errorf("seed %d: %s", cfg.Seed, d)
	}
}

// newLocalAPI serves the API of a machine, with a namespace, until the test ends. Nobody collects
// garbage, as nobody does at the other server.
func newLocalAPI(t *testing.T, namespace string) differences.Server {
	t.Helper()
	registry, err := filepath.EvalSymlinks(os.Getenv("APISERVER"))
	if err != nil {
		t.Fatalf("APISERVER must name the program registry, as make e2e does: %v", err)
	}
	dir, err := os.MkdirTemp("/tmp", "bl") // t.TempDir is too long for the path of a socket
	if err != nil {
		t.Fatal(err)
	}
	api, err := localapi.Open(localapi.Config{
		RootDir: dir, RunDir: dir, NodeName: "n1", Address: "127.0.0.1:0", Registry: registry, Answers: localapi.Answers{Node: http.NotFoundHandler()}, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- api.Serve(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := errors.Join(<-ended, api.Close(), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	config, err := kube.LoadKubeconfig(dir + "/kubeconfig")
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	kubectl := func(args ...string) error {
		out, err := exec.CommandContext(t.Context(), os.Getenv("CONTROLPLANE"), append([]string{"kubectl", "--kubeconfig", dir + "/kubeconfig"}, args...)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("kubectl %v: %w: %s", args, err, out)
		}
		return nil
	}
	if err := errors.Join(kubectl("create", "namespace", namespace), kubectl("create", "serviceaccount", "-n", namespace, "default")); err != nil {
		t.Fatal(err)
	}
	return differences.Server{Name: "the local API", Config: config, Namespace: namespace}
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

package agent

import (
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/config"
	"berth/internal/health"
	"berth/internal/source/manifest"
)

// bootstrap is a kubeconfig by which a node asks for its certificate.
const bootstrap = `apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1", insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
`

// conditionsOf returns the conditions of an agent that is built with these lines of a
// KubeletConfiguration and these flags; berth run without.
func conditionsOf(t *testing.T, kubelet string, flags map[string]string) []health.Code {
	t.Helper()
	dir := t.TempDir()
	cfg := Config{
		RootDir: filepath.Join(dir, "root"), RunDir: filepath.Join(dir, "run"), PodLogsDir: filepath.Join(dir, "logs"), NodeName: "node", Log: slog.New(slog.DiscardHandler),
	}
	if kubelet == withLocalAPI {
		cfg.LocalAPI, kubelet = &LocalAPI{}, ""
	}
	if kubelet != "" {
		write := func(name, content string) string {
			path := filepath.Join(dir, name)
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			return path
		}
		values := map[string]string{
			"config": write("kubelet.yaml", "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncontainerRuntimeEndpoint: unix:///none\n"+
				"failCgroupV1: false\nfailSwapOn: false\n"+kubelet),
			"root-dir": cfg.RootDir, "cert-dir": filepath.Join(dir, "pki"),
		}
		maps.Copy(values, flags)
		if flags["bootstrap-kubeconfig"] != "" {
			values["bootstrap-kubeconfig"] = write("bootstrap", bootstrap)
			values["kubeconfig"] = filepath.Join(dir, "kubeconfig")
		}
		all := config.NewFlags()
		for _, f := range all.All() {
			if value, ok := values[f.Name]; ok {
				if err := f.Set(value); err != nil {
					t.Fatal(err)
				}
			}
		}
		var err error
		if cfg.Kubelet, err = config.Load(all); err != nil {
			t.Fatal(err)
		}
		cfg.RuntimeEndpoint = "unix:///none"
	}
	a, err := Build(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var out []health.Code
	for _, s := range a.Handlers().Health.Conditions() {
		out = append(out, s.Code)
	}
	return out
}

// withLocalAPI stands for a KubeletConfiguration: there is none, but an API server of the machine.
const withLocalAPI = "local API"

// What an agent does not have is not in its table, and each condition has an owner in some agent.
func TestOwnersOfConditions(t *testing.T) {
	always := []health.Code{
		health.ContainerRuntime, health.ContainerNetwork, health.PLEG, health.EventStream, health.Plugins, health.DevicePlugins, health.ContainerCPUs,
		health.Persistence, health.Manifests, health.Clock, health.Quarantine,
	}
	alone := append(slices.Clone(always), health.LocalAPI)
	member := slices.Concat(always, []health.Code{health.CSINode, health.APIServer, health.ClientCertificate})
	owned := map[health.Code]bool{}
	for name, c := range map[string]struct {
		kubelet string
		flags   map[string]string
		want    []health.Code
	}{
		"run":              {"", nil, append(slices.Clone(alone), health.EmbeddedRuntime, health.RuntimeStore)},
		"local API":        {withLocalAPI, nil, append(slices.Clone(alone), health.EmbeddedRuntime, health.RuntimeStore)},
		"without a server": {"enableServer: false\n", nil, alone},
		"with shutdowns":   {"enableServer: false\nshutdownGracePeriod: 30s\n", nil, append(slices.Clone(alone), health.Shutdown)},
		"standalone":       {"authentication: {webhook: {enabled: false}}\nauthorization: {mode: AlwaysAllow}\n", nil, append(slices.Clone(alone), health.ServingCertificate)},
		"member": {
			"enableServer: false\nrotateCertificates: true\n", map[string]string{"bootstrap-kubeconfig": "yes"}, member,
		},
		"member with a signed serving certificate": {
			"rotateCertificates: true\nserverTLSBootstrap: true\n", map[string]string{"bootstrap-kubeconfig": "yes"}, append(slices.Clone(member), health.ServingCertificate),
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := conditionsOf(t, c.kubelet, c.flags)
			for _, code := range got {
				owned[code] = true
			}
			slices.Sort(got)
			slices.Sort(c.want)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	for _, c := range health.Declared() {
		if !owned[c.Code] {
			t.Errorf("%s has no owner in any agent", c.Code)
		}
	}
}

func TestRefused(t *testing.T) {
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	broken := manifest.Problem{Path: "/m/a.yaml", Severity: manifest.SeverityError, Message: "no name", Since: at(2)}
	older := manifest.Problem{Path: "/m/b.yaml", Severity: manifest.SeverityError, Message: "no kind", Since: at(1)}
	odd := manifest.Problem{Path: "/m/c.yaml", Severity: manifest.SeverityWarning, Message: "odd", Since: at(0)}
	for _, c := range []struct {
		problems []manifest.Problem
		want     string
	}{
		{nil, "<nil>"},
		{[]manifest.Problem{odd}, "<nil>"},
		{[]manifest.Problem{odd, broken}, "/m/a.yaml: no name"},
		{[]manifest.Problem{broken, older, odd}, "/m/b.yaml: no kind; and 1 more"},
	} {
		if got := fmt.Sprint(refused(c.problems)); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
}

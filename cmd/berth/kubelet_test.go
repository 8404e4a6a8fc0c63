package main

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/config"
)

func TestCommandArgs(t *testing.T) {
	for _, tt := range []struct{ argv, want []string }{
		{[]string{"/usr/bin/berth", "run", "x"}, []string{"run", "x"}},
		{[]string{"/usr/bin/kubelet", "--v=2"}, []string{"kubelet", "--v=2"}},
		{[]string{"kubelet"}, []string{"kubelet"}},
		{[]string{"kubelet.real", "run"}, []string{"run"}},
	} {
		if diff := cmp.Diff(tt.want, commandArgs(tt.argv)); diff != "" {
			t.Errorf("%v (-want +got):\n%s", tt.argv, diff)
		}
	}
}

// The runtime inside may be named by its socket, as kubeadm names every runtime.
func TestForeignEndpoint(t *testing.T) {
	for endpoint, want := range map[string]string{
		"":                                       "",
		"unix:///run/berth/containerd.sock":      "",
		"unix:///run/containerd/containerd.sock": "unix:///run/containerd/containerd.sock",
	} {
		if got := foreignEndpoint(endpoint, "/run/berth"); got != want {
			t.Errorf("%q is %q, want %q", endpoint, got, want)
		}
	}
}

// TestKubeletCommandHandsOver: what runs gets the configuration and a log that has the warnings.
func TestKubeletCommandHandsOver(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	content := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxpods: 3\nlogging: {format: json}\n"
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	var got *config.Kubelet
	cmd := newKubeletCommand(&globalFlags{}, func(_ context.Context, _ *globalFlags, k *config.Kubelet, _ *slog.LevelVar, log *slog.Logger) error {
		got = k
		log.Debug("a debug message")
		return nil
	})
	var stderr bytes.Buffer
	cmd.SetErr(&stderr)
	cmd.SetArgs([]string{"--config", file, "--kubeconfig", "/k", "-v4", "--seccomp-default", "--register-node=false", "--node-labels=a=b", "--node-labels", "c=d"})
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got == nil || !*got.SeccompDefault || *got.RegisterNode || got.MaxPods != 110 || got.Kubeconfig != "/k" {
		t.Errorf("handed over: %+v", got)
	}
	if diff := cmp.Diff(map[string]string{"a": "b", "c": "d"}, got.NodeLabels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	for _, want := range []string{`"level":"WARN","msg":"` + file + `: maxpods: unknown field; did you mean maxPods? (ignored)"`, `"msg":"a debug message"`} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("log without %s:\n%s", want, &stderr)
		}
	}
}

// As the kubelet's, flags may be written with underscores, and old ones of cAdvisor are taken.
func TestKubeletFlagsOfOldUnitFiles(t *testing.T) {
	var got *config.Kubelet
	cmd := newKubeletCommand(&globalFlags{}, func(_ context.Context, _ *globalFlags, k *config.Kubelet, _ *slog.LevelVar, _ *slog.Logger) error {
		got = k
		return nil
	})
	var stderr bytes.Buffer
	cmd.SetErr(&stderr)
	cmd.SetArgs([]string{
		"--node_labels=a=b", "--register_node=false", "--max-pods", "7", "--seccomp_default", "--containerd=/run/containerd/containerd.sock",
		"--boot_id_file", "/etc/boot-id", "--log-cadvisor-usage", "--log-json-split-stream", "--cpu-cfs-quota-period=20ms",
	})
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got == nil || *got.RegisterNode || got.MaxPods != 7 || !*got.SeccompDefault || got.NodeLabels["a"] != "b" || got.CPUCFSQuotaPeriod.Duration != 20*time.Millisecond {
		t.Errorf("handed over: %+v", got)
	}
	for _, want := range []string{
		"--containerd has no effect: there is no cAdvisor inside, and the flag is deprecated in the kubelet; see --container-runtime-endpoint",
		"--boot-id-file has no effect: there is no cAdvisor inside", "--log-json-split-stream has no effect: the log is one stream",
		"--cpu-cfs-quota-period (cpuCFSQuotaPeriod)",
	} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("log without %q:\n%s", want, &stderr)
		}
	}

	var printed bytes.Buffer
	show := newConfigPrintCommand(&globalFlags{})
	show.SetOut(&printed)
	show.SetErr(&stderr)
	show.SetArgs([]string{"--max_pods=8", "--changed"})
	if err := show.ExecuteContext(t.Context()); err != nil || !strings.Contains(printed.String(), "maxPods") {
		t.Errorf("berth config print: %v\n%s", err, &printed)
	}
}

// Blocking is profiled where profiles are served, and only if that is asked for.
func TestBlockProfileRate(t *testing.T) {
	for _, c := range []struct {
		serves, contention bool
		want               int
	}{{true, true, 1}, {true, false, 0}, {false, true, 0}} {
		k := &config.Kubelet{}
		k.EnableProfilingHandler, k.EnableContentionProfiling = &c.serves, c.contention
		if got := blockProfileRate(k); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

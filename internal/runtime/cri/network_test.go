package cri

import (
	"slices"
	"testing"
)

func TestNetworkNamespaceOf(t *testing.T) {
	for text, want := range map[string]string{
		"":   "",
		"{}": "",
		`{"runtimeSpec":{"linux":{"namespaces":[{"type":"ipc"},{"type":"network","path":"/run/netns/a"}]}}}`: "/run/netns/a",
		`{"runtimeSpec":{"linux":{"namespaces":[{"type":"ipc","path":"/x"},{"type":"network"}]}}}`:           "",
		`{"runtimeSpec":{"linux":{"namespaces":[{"type":"ipc"}]}}}`:                                          "",
		`{"runtimeSpec":"elsewhere"}`: "",
		`a pause of the sandbox`:      "",
	} {
		if got := networkNamespaceOf(text); got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}

func TestLogWriters(t *testing.T) {
	for text, want := range map[string][]string{
		"":   nil,
		"{}": nil,
		`{"containerd":{"defaultRuntimeName":"runc","runtimes":{"runc":{"ContainerAnnotations":null},"podshim":{"ContainerAnnotations":["berth.dev/log-path"]}}}}`: {"podshim"},
		`{"containerd":{"defaultRuntimeName":"podshim","runtimes":{"podshim":{"ContainerAnnotations":["io.example/x","berth.dev/log-path"]}}}}`:                    {"", "podshim"},
		`{"containerd":{"defaultRuntimeName":"a","runtimes":{"b":{"ContainerAnnotations":["berth.dev/*"]}}}}`:                                                      nil,
		`{"containerd":{"runtimes":[]}}`: nil,
		`cgroup_manager = "systemd"`:     nil,
	} {
		if got := logWriters(text); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}

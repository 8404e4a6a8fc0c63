package cri

import "testing"

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

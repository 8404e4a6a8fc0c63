package images

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestOtherDigests(t *testing.T) {
	all := []*runtimeapi.Image{
		{RepoTags: []string{"r/app:2", "r/app:1"}, RepoDigests: []string{"r/app@sha256:1", "r/other@sha256:9"}},
		{RepoTags: []string{"r/app:3"}},
		{RepoTags: []string{"r/other:1"}, RepoDigests: []string{"r/other@sha256:9"}},
		{RepoDigests: []string{"r/app@sha256:8"}},
	}
	const old = " has no digest on this node, as it was imported from an archive of docker's old format"
	for _, tt := range []struct{ repository, tag, want string }{
		{"r/app", "1", ": r/app:1 has digest sha256:1 on this node"},
		{"r/app", "3", ": r/app:3" + old},
		{"r/app", "", ": r/app:1 has digest sha256:1 on this node, r/app:2 has digest sha256:1 on this node, r/app:3" + old},
		{"r/app", "4", ""},
		{"r/none", "", ""},
	} {
		if got := computeOtherDigests(all, tt.repository, tt.tag, "sha256:5"); got != tt.want {
			t.Errorf("%s:%s: %q, want %q", tt.repository, tt.tag, got, tt.want)
		}
	}
}

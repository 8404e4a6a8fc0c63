package preflight

import (
	"strings"
	"testing"
)

func TestCheckPodshims(t *testing.T) {
	for _, tt := range []struct{ release, noexec, want string }{
		{"5.12.0", "", ""},
		{"6.18.5-generic", "1", ""},
		{"5.11.22", "", "Linux 5.12"},
		{"strange", "0", "Linux 5.12"},
		{"6.18.5", "2", "vm.memfd_noexec=2"},
	} {
		err := checkPodshims(tt.release, tt.noexec)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("release %q, noexec %q: %v, want %q", tt.release, tt.noexec, err, tt.want)
		}
	}
}

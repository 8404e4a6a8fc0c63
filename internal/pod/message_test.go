package pod

import "testing"

func TestIsSameMessage(t *testing.T) {
	for _, tc := range []struct {
		name, a, b string
		want       bool
	}{
		{"equal", "no room", "no room", true},
		{"other words", "no room", "no space", false},
		{
			"ID of a container",
			`failed to generate container "a9536a833e9ef5d82b8a474f8c31e4fff3e664589bf319fdc0860ca7abfa0516" spec: no command specified`,
			`failed to generate container "e65096ef6f6fc5d55d9ad89dbad3c002cd6a12b945d286feb242490cebdf8a94" spec: no command specified`, true,
		},
		{
			"network namespace",
			`plugin type="bridge" failed (add): failed to open netns "/var/run/netns/cni-0d5f9a3c-7d1c-4a3e-9d39-0e8c3d0c1a52": no such file`,
			`plugin type="bridge" failed (add): failed to open netns "/var/run/netns/cni-91c0b3f2-0a44-4f0a-8c77-5b2f1e6d7a10": no such file`, true,
		},
		{
			"port of a client",
			"lookup registry.example on 10.0.0.1:53: read udp 10.0.0.2:38291->10.0.0.1:53: i/o timeout",
			"lookup registry.example on 10.0.0.1:53: read udp 10.0.0.2:50112->10.0.0.1:53: i/o timeout", true,
		},
		{
			"port of a server",
			"dial tcp 10.0.0.1:53: connection refused", "dial tcp 10.0.0.1:54: connection refused", false,
		},
		{"time", "not valid before 2026-01-02T03:04:05Z", "not valid before 2026-01-02T03:04:15.5Z", true},
		{"measured time", "gave up after 1.204s", "gave up after 998.1ms", true},
		{"back-off", "back-off 10s restarting failed container=a", "back-off 20s restarting failed container=a", false},
		{"process", "process is gone: pid 4711", "process is gone: pid 815", true},
		{"temporary folder", "mount /var/lib/x/tmpmounts/containerd-mount2983471: denied", "mount /var/lib/x/tmpmounts/containerd-mount118273645: denied", true},
		{"amount", "limit (75497472) is below usage (80000000)", "limit (75497472) is below usage (90000000)", false},
		{"exit code", "exit status 1", "exit status 2", false},
		{
			"digest",
			"image x@sha256:a9536a833e9ef5d82b8a474f8c31e4fff3e664589bf319fdc0860ca7abfa0516 not found",
			"image x@sha256:e65096ef6f6fc5d55d9ad89dbad3c002cd6a12b945d286feb242490cebdf8a94 not found", false,
		},
	} {
		if got := IsSameMessage(tc.a, tc.b); got != tc.want {
			t.Errorf("%s: %v, want %v: %q and %q", tc.name, got, tc.want, stableMessage(tc.a), stableMessage(tc.b))
		}
	}
}

//go:build e2e && vm

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// A profile that allows everything but one folder.
const apparmorProfile = `profile berth-e2e flags=(attach_disconnected) {
  file,
  capability,
  network,
  signal,
  ptrace,
  mount,
  deny /shared/forbidden/** w,
}
`

// How containers are confined by AppArmor, seen from inside: by the runtime's profile when nothing
// is said and when it is asked for, by one of the host's own, not at all; by the pod's choice where
// the container has none.
func TestVMAppArmor(t *testing.T) {
	if enabled, _ := os.ReadFile("/sys/module/apparmor/parameters/enabled"); !strings.HasPrefix(string(enabled), "Y") {
		t.Fatal("this host's kernel does not enforce AppArmor profiles: run this test by make e2e-vm")
	}
	n := newNode(t)
	file := filepath.Join(n.place.Dir, "profile")
	must(t, os.WriteFile(file, []byte(apparmorProfile), 0o644))
	parser := func(flag string) {
		t.Helper()
		if out, err := exec.Command("apparmor_parser", flag, file).CombinedOutput(); err != nil {
			t.Fatalf("apparmor_parser %s: %v\n%s", flag, err, out)
		}
	}
	parser("--replace")
	t.Cleanup(func() { parser("--remove") })

	const runtimes, own = "cri-containerd.apparmor.d (enforce)", "berth-e2e (enforce)"
	localhost := &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeLocalhost, LocalhostProfile: ptr.To("berth-e2e")}
	unconfined := &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeUnconfined}
	cases := []struct {
		name             string
		pod, container   *v1.AppArmorProfile
		privileged       bool
		want             string
		writesEverywhere bool
	}{
		{name: "unsaid", want: runtimes, writesEverywhere: true},
		{name: "runtimes", container: &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeRuntimeDefault}, want: runtimes, writesEverywhere: true},
		{name: "hosts", container: localhost, want: own},
		{name: "pods", pod: localhost, want: own},
		{name: "stronger", pod: localhost, container: unconfined, want: "unconfined", writesEverywhere: true},
		{name: "privileged", privileged: true, want: "unconfined", writesEverywhere: true},
	}
	for _, tc := range cases {
		p := n.act(tc.name, v1.RestartPolicyAlways, nil, actor("main",
			"mkdir -p /shared/forbidden; echo x > /shared/forbidden/file && say wrote || say could not\ncat /proc/self/attr/current > /shared/profile\nsay looked\nstay\n"))
		p.Spec.SecurityContext = &v1.PodSecurityContext{AppArmorProfile: tc.pod}
		p.Spec.Containers[0].SecurityContext = &v1.SecurityContext{AppArmorProfile: tc.container, Privileged: ptr.To(tc.privileged)}
		n.put(p)
	}
	lost := n.act("lost", v1.RestartPolicyAlways, nil, actor("main", "say ran\n"))
	lost.Spec.Containers[0].SecurityContext = &v1.SecurityContext{
		AppArmorProfile: &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeLocalhost, LocalhostProfile: ptr.To("berth-e2e-none")},
	}
	n.put(lost)
	n.start()

	for _, tc := range cases {
		n.awaitStory(tc.name, "main looked")
		if got := readFile(t, filepath.Join(n.stage(tc.name), "profile")); got != tc.want {
			t.Errorf("%s: confined by %q, want %q", tc.name, got, tc.want)
		}
		if wrote := n.said(tc.name, "main wrote") == 1; wrote != tc.writesEverywhere {
			t.Errorf("%s: wrote into the folder: %v, want %v", tc.name, wrote, tc.writesEverywhere)
		}
	}
	if said := n.awaitWaiting("lost", "CreateContainerError"); !strings.Contains(said, "berth-e2e-none") {
		t.Errorf("a profile that is not loaded: %q", said)
	}
	if n.said("lost", "main ran") > 0 {
		t.Error("a container ran without its profile")
	}
}

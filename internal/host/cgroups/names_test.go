package cgroups

import (
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
)

func TestPodParent(t *testing.T) {
	const uid = "5c3b-11aa"
	of := func(c v1.Container) *v1.Pod {
		return &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}, Spec: v1.PodSpec{Containers: []v1.Container{c}}}
	}
	guaranteed := of(needs(nil, list("cpu", "1", "memory", "1Mi")))
	burst := of(needs(list("cpu", "1"), nil))
	effort := of(v1.Container{})
	tests := []struct {
		root   string
		driver Driver
		pod    *v1.Pod
		want   string
	}{
		{"/", Cgroupfs, guaranteed, "/kubepods/pod5c3b-11aa"},
		{"", Cgroupfs, burst, "/kubepods/burstable/pod5c3b-11aa"},
		{"/", Cgroupfs, effort, "/kubepods/besteffort/pod5c3b-11aa"},
		{"/berth-x/y/", Cgroupfs, effort, "/berth-x/y/kubepods/besteffort/pod5c3b-11aa"},
		{"/", Systemd, guaranteed, "/kubepods.slice/kubepods-pod5c3b_11aa.slice"},
		{"/", Systemd, burst, "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod5c3b_11aa.slice"},
		{"/", Systemd, effort, "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod5c3b_11aa.slice"},
		{"/a-b", Systemd, guaranteed, "/a_b.slice/a_b-kubepods.slice/a_b-kubepods-pod5c3b_11aa.slice"},
	}
	for _, tt := range tests {
		m, err := New(Config{Root: tt.root, Driver: tt.driver, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		if got := m.PodParent(tt.pod); got != tt.want {
			t.Errorf("root %q, %s: %s, want %s", tt.root, tt.driver, got, tt.want)
		}
	}
}

func TestUIDOfDirectory(t *testing.T) {
	root := rootName("/a-b")
	for _, d := range []Driver{Cgroupfs, Systemd} {
		for _, class := range classes {
			for _, uid := range []pod.UID{"0123456789abcdef0123456789abcdef", "5c3b6a3e-4c3e-4b1e-9d3a-0a7d2f6b9c10"} {
				n := podName(root, class, uid)
				dir := n[len(n)-1]
				if d == Systemd {
					dir = n.unit()
				}
				got, ok := uidOf(qosName(root, class), dir, d)
				if !ok || got != uid {
					t.Errorf("%s %s: uidOf(%q) = %q, %v; want %q", d, class, dir, got, ok, uid)
				}
			}
		}
	}
	kube := rootName("/").child(kubepods)
	for _, dir := range []string{"burstable", "pod", "cri-containerd-1", "kubepods-burstable.slice", ""} {
		for _, d := range []Driver{Cgroupfs, Systemd} {
			if uid, ok := uidOf(kube, dir, d); ok {
				t.Errorf("%s: uidOf(%q) = %q, want none", d, dir, uid)
			}
		}
	}
}

func TestUnitOfRoot(t *testing.T) {
	got := []string{rootName("/").unit(), rootName("/").path(Systemd), rootName("/").path(Cgroupfs)}
	if diff := cmp.Diff([]string{"-.slice", "/", "/"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestNewRefuses(t *testing.T) {
	for _, c := range []Config{{Root: "/"}, {Root: "/", Driver: "docker"}, {Root: "x", Driver: Cgroupfs}, {Root: "/a/../b", Driver: Cgroupfs}} {
		if _, err := New(c); err == nil {
			t.Errorf("New(%+v) succeeded", c)
		}
	}
}

func TestPodNeedsUID(t *testing.T) {
	m, err := New(Config{Driver: Cgroupfs, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.RemovePod(t.Context(), ""); err == nil {
		t.Error("an empty UID was accepted")
	}
	if err := m.EnsurePod(t.Context(), &v1.Pod{}); err == nil {
		t.Error("a pod without a UID was accepted")
	}
}

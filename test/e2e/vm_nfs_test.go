//go:build e2e && vm

package e2e

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/record/journal"
	"berth/internal/runtime/crispec"
	"berth/internal/storage/mounts"
	"berth/internal/storage/volumes"
)

// nfsServer is the machine's own server of NFS, which exports one folder.
type nfsServer struct {
	t   *testing.T
	dir string // what it exports, under the same name
}

// newNFSServer starts the server, which exports a folder of the node.
func newNFSServer(n *node) *nfsServer {
	n.t.Helper()
	s := &nfsServer{t: n.t, dir: filepath.Join(n.place.Dir, "export")}
	must(n.t, os.Mkdir(s.dir, 0o755), os.MkdirAll("/etc/nfs.conf.d", 0o755))
	// Version 4 alone needs no other service than the server itself.
	must(n.t, os.WriteFile("/etc/nfs.conf.d/e2e.conf", []byte("[nfsd]\nvers3=n\ngrace-time=10\nlease-time=10\n"), 0o644))
	if out, err := exec.Command("systemctl", "start", "nfs-server").CombinedOutput(); err != nil {
		n.t.Fatalf("this host has no server of NFS (%v: %s): run this test by make e2e-vm", err, out)
	}
	n.t.Cleanup(func() { // before the node is swept: a process that waits for the server cannot end
		s.answer()
		for _, args := range [][]string{{"exportfs", "-ua"}, {"systemctl", "stop", "nfs-server"}} {
			if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
				n.t.Errorf("%v: %v: %s", args, err, out)
			}
		}
	})
	s.export()
	return s
}

func (s *nfsServer) run(name string, args ...string) {
	s.t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		s.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

func (s *nfsServer) export() {
	s.t.Helper()
	s.run("exportfs", "-o", "rw,no_root_squash,no_subtree_check,insecure", "127.0.0.1:"+s.dir)
}

// silence has the server be heard no more, as when it or the way to it is gone.
func (s *nfsServer) silence() {
	s.t.Helper()
	s.run("nft", "add table inet e2e_nfs; add chain inet e2e_nfs input { type filter hook input priority 0; }; add rule inet e2e_nfs input tcp dport 2049 drop")
}

// answer ends the silence, if there is one.
func (s *nfsServer) answer() { _ = exec.Command("nft", "delete", "table", "inet", "e2e_nfs").Run() }

// volume is a folder of the server.
func (s *nfsServer) volume(readOnly bool) v1.VolumeSource {
	return v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "127.0.0.1", Path: s.dir, ReadOnly: readOnly}}
}

// withVolume gives the pod's container the volume as /data.
func withVolume(p *v1.Pod, src v1.VolumeSource) *v1.Pod {
	p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: "data", VolumeSource: src})
	c := &p.Spec.Containers[0]
	c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: "data", MountPath: "/data"})
	return p
}

// nfsMounts are the mount points of NFS below a folder, with their options, from the mount table: a
// server need not answer for that.
func nfsMounts(t *testing.T, below string) []string {
	t.Helper()
	var found []string
	for line := range strings.Lines(readFile(t, "/proc/self/mounts")) {
		if f := strings.Fields(line); strings.HasPrefix(f[2], "nfs") && strings.HasPrefix(f[1], below+"/") {
			found = append(found, f[1]+" "+f[3])
		}
	}
	return found
}

// awaitNFSMounts waits until the pods have so many mounts of NFS.
func (n *node) awaitNFSMounts(count int) {
	n.t.Helper()
	until(n.t, fmt.Sprintf("the pods to have %d mounts of NFS", count), func() bool { return len(nfsMounts(n.t, n.place.Root)) == count })
}

// nfsActor is a pod of an actor that has the volume.
func (n *node) nfsActor(name, script string, src v1.VolumeSource) *v1.Pod {
	n.t.Helper()
	return withVolume(n.act(name, v1.RestartPolicyAlways, nil, actor("main", script)), src)
}

// Volumes of a server: pods share what it has, an agent that was killed with volumes mounted,
// before containers and after them, finds what there is and ends it, and the words of a server that
// refuses are told.
func TestVMNFS(t *testing.T) {
	n := newNode(t)
	s := newNFSServer(n)
	a := n.start()

	n.put(n.nfsActor("writer", "echo shared > /data/file && say wrote\nstay\n", s.volume(false)))
	n.awaitStory("writer", "main wrote")
	n.put(n.nfsActor("reader", "say read $(cat /data/file)\ntouch /data/other 2>>/shared/refusals || say refused\nstay\n", s.volume(true)))
	n.awaitReady("writer", "reader")
	n.awaitStory("reader", "main began")
	n.wantStory("reader", "main read shared", "main refused")
	wantText(t, "the refusal", readFile(t, filepath.Join(n.stage("reader"), "refusals")), "Read-only file system")
	wantFile(t, filepath.Join(s.dir, "file"), "shared")
	n.awaitNFSMounts(2)

	// Mounted, and no container started: one pod is wanted when the next agent comes, the other is
	// not.
	for _, name := range []string{"kept", "dropped"} {
		p := n.nfsActor(name, "stay\n", s.volume(false))
		p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = "berth.local/absent:1", v1.PullNever
		n.put(p)
	}
	n.await("the pods without images to wait", func(p pods) bool {
		for _, name := range []string{"kept", "dropped"} {
			if w := container(p.named(name), "main").State.Waiting; w == nil || w.Reason != "ErrImageNeverPull" {
				return false
			}
		}
		return true
	})
	n.awaitNFSMounts(4)
	a.kill()
	n.remove("dropped.yaml")
	a = n.start()
	n.awaitNFSMounts(3)
	n.remove("kept.yaml")
	n.awaitNFSMounts(2)

	// While a pod terminates.
	n.put(n.nfsActor("leaving", "trap 'say asked' TERM\nsay began\nuntil [ -e /shared/go ]; do sleep 1; done\n", s.volume(false)))
	n.awaitStory("leaving", "main began")
	n.awaitReady("leaving")
	n.remove("leaving.yaml")
	n.awaitStory("leaving", "main asked")
	a.kill()
	n.awaitNFSMounts(3)
	n.mark("leaving", "go")
	n.start()
	n.awaitNFSMounts(2)

	n.put(n.nfsActor("refused", "stay\n", v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "127.0.0.1", Path: s.dir + "/absent"}}))
	until(t, "the server's words to be told", func() bool {
		events := n.events("")
		return strings.Contains(events, `MountVolume.SetUp failed for volume "data" : mount 127.0.0.1:`+s.dir+"/absent: ") && strings.Contains(events, "No such file or directory")
	})
	n.awaitReady("writer", "reader")
	for _, name := range []string{"writer", "reader", "refused"} {
		n.remove(name + ".yaml")
	}
	n.awaitNFSMounts(0)
	until(t, "the pods' folders to go", func() bool {
		left, err := os.ReadDir(filepath.Join(n.place.Root, "pods"))
		return err == nil && len(left) == 0
	})
}

// A server that is not heard any more holds up nothing but the pods that have its volumes, and
// these no longer than they are wanted: one whose volume is being mounted goes at once, and one
// that has it when its container is killed and the volume is unmounted by force. The agent is one
// that finds all this.
func TestVMNFSSilentServer(t *testing.T) {
	n := newNode(t)
	s := newNFSServer(n)
	a := n.start()
	n.put(n.nfsActor("user", "echo x > /data/file\nsay began\nuntil [ -e /shared/end ]; do sleep 1; done\n", s.volume(false)))
	n.awaitReady("user")
	n.awaitStory("user", "main began")
	mounts := nfsMounts(t, n.place.Root)
	if len(mounts) != 1 {
		t.Fatalf("mounted: %q", mounts)
	}
	s.silence()
	until(t, "the kernel to have forgotten what it knew of the folder", func() bool {
		return exec.Command("timeout", "--signal=KILL", "5", "stat", strings.Fields(mounts[0])[0]).Run() != nil
	})
	a.kill()
	n.start()
	n.put(n.nfsActor("late", "stay\n", s.volume(false)))
	n.put(n.act("bystander", v1.RestartPolicyAlways, nil, actor("main", "stay\n")))
	now := n.awaitReady("user", "bystander")
	if said := n.execIn("", "user", "--", "/usr/bin/true"); said.code != 0 {
		t.Errorf("exec into the pod: %v", said)
	}
	until(t, "what is used to be told", func() bool {
		return strings.Contains(n.ask("/stats/summary"), `"name":"bystander"`)
	})
	mounting := func() bool { return exec.Command("pgrep", "-f", "mount.nfs 127.0.0.1:"+s.dir).Run() == nil }
	until(t, "the late pod's volume to be waited for", mounting)
	late := n.await("the late pod", func(p pods) bool { return p.named("late") != nil }).named("late")
	n.remove("late.yaml")
	n.awaitGone(late.UID)
	until(t, "nobody to wait for the late pod's volume", func() bool { return !mounting() })

	// Its container is to be started again when the pod is to go.
	user := now.named("user")
	n.mark("user", "end")
	n.await("the container to end", func(p pods) bool { return !p.ready("user") })
	n.remove("user.yaml")
	n.awaitGone(user.UID)
	n.awaitNFSMounts(0)
	n.awaitReady("bystander")

	s.answer()
	n.put(n.nfsActor("next", "say read $(cat /data/file)\nstay\n", s.volume(false)))
	n.awaitStory("next", "main read x")
	n.remove("next.yaml")
	n.awaitNFSMounts(0)
}

// boundClaims are claims that are bound to persistent volumes of the same name.
type boundClaims map[string]*v1.PersistentVolume

func (b boundClaims) GetPersistentVolumeClaim(_ context.Context, namespace, name string) (*v1.PersistentVolumeClaim, error) {
	return &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name)},
		Spec:       v1.PersistentVolumeClaimSpec{VolumeName: name},
		Status:     v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound},
	}, nil
}

func (b boundClaims) GetPersistentVolume(_ context.Context, name string) (*v1.PersistentVolume, error) {
	return b[name], nil
}

func (b boundClaims) PatchPersistentVolumeClaimStatus(context.Context, *v1.PersistentVolumeClaim, *v1.PersistentVolumeClaim) (*v1.PersistentVolumeClaim, error) {
	return nil, errors.ErrUnsupported
}

// A claim that is bound to a server's folder: mounted as the persistent volume says, for one pod
// read-only, found by managers that know nothing of it, and taken down by another one.
func TestVMNFSClaim(t *testing.T) {
	n := newNode(t)
	s := newNFSServer(n)
	claims := boundClaims{"share": &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "share"},
		Spec: v1.PersistentVolumeSpec{
			ClaimRef: &v1.ObjectReference{Name: "share", UID: "share"}, MountOptions: []string{"nfsvers=4.1", "soft", "timeo=70"},
			PersistentVolumeSource: v1.PersistentVolumeSource{NFS: s.volume(false).NFS},
		},
	}}
	log := slog.New(slog.DiscardHandler)
	open := func() *volumes.Manager {
		m, err := volumes.New(volumes.Config{Root: n.place.Root, Claims: claims, Mounter: mounts.New(n.place.Root, n.place.Run), Log: log, Journal: journal.New(log)})
		must(t, err)
		return m
	}
	user := func(name string, readOnly bool) *v1.Pod {
		must(t, os.MkdirAll(filepath.Join(n.place.Root, "pods", name, "volumes"), 0o750))
		return withVolume(&v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
			Spec:       v1.PodSpec{Containers: make([]v1.Container, 1)},
		}, v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "share", ReadOnly: readOnly}})
	}
	setup := func(p *v1.Pod) (*volumes.Manager, crispec.Volume) {
		t.Helper()
		m := open()
		in, errs := m.Prepare(t.Context(), p)
		must(t, errs.Err())
		mounted, errs := m.Setup(t.Context(), p, in)
		must(t, errs.Err())
		return m, mounted["data"]
	}
	one, two := user("one", false), user("two", true)
	for range 2 {
		_, writes := setup(one)
		m, reads := setup(two)
		if writes.ReadOnly || !reads.ReadOnly {
			t.Errorf("mounted %+v for the one and %+v for the other", writes, reads)
		}
		must(t, os.WriteFile(filepath.Join(writes.HostPath, "file"), []byte("shared"), 0o644))
		wantFile(t, filepath.Join(reads.HostPath, "file"), "shared")
		if err := os.WriteFile(filepath.Join(reads.HostPath, "file"), nil, 0o644); !errors.Is(err, unix.EROFS) {
			t.Errorf("writing for the pod that may only read: %v", err)
		}
		if use, err := m.Use(t.Context(), two, "data"); err != nil || use.Capacity == 0 || use.Available == 0 || use.Inodes == 0 {
			t.Errorf("used: %+v, %v", use, err)
		}
	}
	found := nfsMounts(t, n.place.Root)
	if len(found) != 2 {
		t.Errorf("%d mounts, want 2", len(found))
	}
	for _, line := range found {
		for _, option := range []string{"vers=4.1", "soft", "timeo=70"} {
			wantText(t, "options", line, ","+option+",")
		}
	}
	for _, p := range []*v1.Pod{one, two} {
		must(t, open().Teardown(t.Context(), p.UID))
	}
	n.awaitNFSMounts(0)
	wantFile(t, filepath.Join(s.dir, "file"), "shared")
}

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"berth/internal/record/journal"
	"berth/internal/runtime/crispec"
	"berth/internal/storage/mounts"
	"berth/internal/storage/volumes"
)

// oneSecret is an API server that has one secret in every namespace, under every name.
type oneSecret struct{ data map[string][]byte }

func (o *oneSecret) ConfigMap(context.Context, string, string) (*v1.ConfigMap, error) {
	return nil, errors.New("there are no config maps")
}

func (o *oneSecret) Secret(context.Context, string, string) (*v1.Secret, error) {
	return &v1.Secret{Data: o.data}, nil
}

func (o *oneSecret) Token(context.Context, *v1.Pod, *v1.ServiceAccountTokenProjection) (string, error) {
	return "token", nil
}

// Secrets and tokens never reach a disk, and belong to whom the pod says.
func TestSecretVolumes(t *testing.T) {
	const uid = "11111111-2222-3333-4444-666666666666"
	root := t.TempDir()
	log := slog.New(slog.DiscardHandler)
	secret := &oneSecret{data: map[string][]byte{"key": []byte("1")}}
	m, err := volumes.New(volumes.Config{Root: root, Mounter: mounts.New(root, t.TempDir()), Objects: secret, Log: log, Journal: journal.New(log)})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"volumes", "plugins"} {
		if err := os.MkdirAll(filepath.Join(root, "pods", uid, d), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: uid},
		Spec: v1.PodSpec{
			SecurityContext: &v1.PodSecurityContext{FSGroup: ptr.To(int64(4242)), RunAsUser: ptr.To(int64(4343))},
			Containers:      []v1.Container{{Name: "c", VolumeMounts: []v1.VolumeMount{{Name: "secret"}, {Name: "token"}}}},
			Volumes: []v1.Volume{
				{Name: "secret", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s", DefaultMode: ptr.To(int32(0o400))}}},
				{Name: "token", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
					{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "dir/token"}},
				}}}},
			},
		},
	}
	pass := func() map[string]crispec.Volume {
		t.Helper()
		in, err := m.Prepare(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		mounted, err := m.Setup(t.Context(), p, in)
		if err != nil {
			t.Fatal(err)
		}
		return mounted
	}
	mounted := pass()
	t.Cleanup(func() { // for a test that fails half way
		_ = unix.Unmount(filepath.Join(mounted["secret"].HostPath, "..2000_01_01_00_00_00.1"), unix.MNT_DETACH)
		for _, v := range mounted {
			if err := unix.Unmount(v.HostPath, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
				t.Errorf("unmount %s: %v", v.HostPath, err)
			}
		}
	})
	key, token := filepath.Join(mounted["secret"].HostPath, "key"), filepath.Join(mounted["token"].HostPath, "dir/token")
	for path, want := range map[string]unix.Stat_t{
		key:                                      {Uid: 0, Gid: 4242, Mode: unix.S_IFREG | 0o440},
		token:                                    {Uid: 4343, Gid: 4242, Mode: unix.S_IFREG | 0o640},
		filepath.Dir(token):                      {Uid: 0, Gid: 4242, Mode: unix.S_IFDIR | unix.S_ISGID | 0o755},
		mounted["token"].HostPath:                {Uid: 0, Gid: 4242, Mode: unix.S_IFDIR | unix.S_ISGID | unix.S_ISVTX | 0o777},
		mounted["secret"].HostPath + "/..data/.": {Uid: 0, Gid: 4242, Mode: unix.S_IFDIR | unix.S_ISGID | 0o755},
	} {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		if st.Uid != want.Uid || st.Gid != want.Gid || st.Mode != want.Mode {
			t.Errorf("%s: %d:%d %o, want %d:%d %o", path, st.Uid, st.Gid, st.Mode, want.Uid, want.Gid, want.Mode)
		}
		var fs unix.Statfs_t
		if err := unix.Statfs(path, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
			t.Errorf("%s is on filesystem %#x, want a tmpfs: %v", path, fs.Type, err)
		}
	}
	secret.data = map[string][]byte{"key": []byte("2")}
	pass()
	if got, err := os.ReadFile(key); err != nil || string(got) != "2" {
		t.Errorf("after an update: %q, %v", got, err)
	}

	// A container has the volumes lead to the host, before an update and before the clean-up:
	// nothing is written, given away or removed there.
	host := filepath.Join(root, "host")
	must(t, os.MkdirAll(filepath.Join(host, "dir"), 0o700), os.WriteFile(filepath.Join(host, "key"), []byte("precious"), 0o600),
		os.WriteFile(filepath.Join(host, "dir/token"), []byte("precious"), 0o600))
	wantHost := func(when string) {
		t.Helper()
		for _, path := range []string{"", "key", "dir", "dir/token"} {
			var st unix.Stat_t
			if err := unix.Lstat(filepath.Join(host, path), &st); err != nil || st.Uid != 0 || st.Gid != 0 || st.Mode&0o7077 != 0 {
				t.Errorf("%s: the host's %q is %d:%d %o, %v", when, path, st.Uid, st.Gid, st.Mode, err)
			}
		}
		if got, err := os.ReadFile(filepath.Join(host, "key")); err != nil || string(got) != "precious" {
			t.Errorf("%s: the host's file is %q, %v", when, got, err)
		}
	}
	lead := func() {
		t.Helper()
		for _, v := range mounted {
			data := filepath.Join(v.HostPath, "..data")
			files, err := os.Readlink(data)
			must(t, err, os.Symlink(host, filepath.Join(v.HostPath, "..data_tmp")), os.Remove(data), os.Symlink(host, data),
				os.RemoveAll(filepath.Join(v.HostPath, files)), os.Symlink(host, filepath.Join(v.HostPath, files)))
		}
	}
	lead()
	secret.data = map[string][]byte{"key": []byte("3")}
	pass()
	if got, err := os.ReadFile(key); err != nil || string(got) != "3" {
		t.Errorf("after an update of a volume that led to the host: %q, %v", got, err)
	}
	wantHost("after an update")
	// A folder of the host, mounted where an earlier agent could have left files.
	left := filepath.Join(mounted["secret"].HostPath, "..2000_01_01_00_00_00.1")
	must(t, os.Mkdir(left, 0o755), unix.Mount(host, left, "", unix.MS_BIND, ""))
	in, errs := m.Prepare(t.Context(), p)
	must(t, errs.Err())
	if _, errs := m.Setup(t.Context(), p, in); !errors.Is(errs.Err(), unix.EXDEV) {
		t.Errorf("clean-up met a mount: %v, want a refusal to cross it", errs)
	}
	wantHost("after an update of a volume with a mount inside")
	must(t, unix.Unmount(left, 0))
	pass()
	lead()
	if err := m.Teardown(t.Context(), uid); err != nil {
		t.Fatal(err)
	}
	for _, v := range mounted {
		if _, err := os.Stat(v.HostPath); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", v.HostPath, err)
		}
	}
	wantHost("after the clean-up")
}

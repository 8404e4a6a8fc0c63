package volumes

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/record/events/messagestest"
	"berth/internal/runtime/crispec"
)

// attacks are what a container that can write into a volume which shows files may make of it, to
// have the agent write, change or remove what is in the host's folder.
var attacks = map[string]func(dir, host string) error{
	"..data leads to the host":            func(dir, host string) error { return relink(filepath.Join(dir, dataLink), host) },
	"..data leads to the host, by a path": func(dir, host string) error { return relink(filepath.Join(dir, dataLink), relative(dir, host)) },
	"..data leads up":                     func(dir, host string) error { return relink(filepath.Join(dir, dataLink), "..") },
	"..data leads to itself":              func(dir, host string) error { return relink(filepath.Join(dir, dataLink), dataLink) },
	"..data leads to a link to the host": func(dir, host string) error {
		return errors.Join(os.Symlink(host, filepath.Join(dir, "..2000_01_01_00_00_00.1")), relink(filepath.Join(dir, dataLink), "..2000_01_01_00_00_00.1"))
	},
	"..data is a folder": func(dir, host string) error {
		data := filepath.Join(dir, dataLink)
		return errors.Join(os.Remove(data), os.MkdirAll(filepath.Join(data, "deep"), 0o755), os.Symlink(host, filepath.Join(data, "deep/link")))
	},
	"..data is a file": func(dir, host string) error {
		data := filepath.Join(dir, dataLink)
		return errors.Join(os.Remove(data), os.Link(filepath.Join(host, "precious"), data))
	},
	"the folder of the files leads to the host": func(dir, host string) error {
		data := dataOf(dir)
		return errors.Join(os.Rename(data, filepath.Join(dir, "away")), os.Symlink(host, data))
	},
	"a folder in it leads to the host": func(dir, host string) error {
		return errors.Join(os.RemoveAll(filepath.Join(dir, dataLink, "sub")), os.Symlink(host, filepath.Join(dir, dataLink, "sub")))
	},
	"a file in it is the host's": func(dir, host string) error {
		file := filepath.Join(dir, dataLink, "precious")
		return errors.Join(os.RemoveAll(file), os.Link(filepath.Join(host, "precious"), file))
	},
	"a file in it leads to the host": func(dir, host string) error {
		return relink(filepath.Join(dir, dataLink, "precious"), filepath.Join(host, "precious"))
	},
	"a file in it is a pipe": func(dir, host string) error {
		file := filepath.Join(dir, dataLink, "precious")
		return errors.Join(os.Remove(file), unix.Mkfifo(file, 0o644))
	},
	"..data_tmp leads to the host": func(dir, host string) error { return os.Symlink(host, filepath.Join(dir, newDataLink)) },
	"..data_tmp is a folder": func(dir, host string) error {
		return errors.Join(os.Mkdir(filepath.Join(dir, newDataLink), 0o755), os.Symlink(host, filepath.Join(dir, newDataLink, "link")))
	},
	"another folder of files leads to the host": func(dir, host string) error {
		return os.Symlink(host, filepath.Join(dir, "..2000_01_01_00_00_00.1"))
	},
	"what containers see leads to the host": func(dir, host string) error {
		return errors.Join(relink(filepath.Join(dir, "precious"), filepath.Join(host, "precious")), relink(filepath.Join(dir, "sub"), host))
	},
}

func relative(dir, host string) string {
	rel, err := filepath.Rel(dir, host)
	if err != nil {
		return err.Error()
	}
	return rel
}

// dataOf returns the folder that ..data leads to.
func dataOf(dir string) string {
	name, err := os.Readlink(filepath.Join(dir, dataLink))
	if err != nil {
		return err.Error()
	}
	return filepath.Join(dir, name)
}

// hostFolder makes a folder of the host, with a file of a name that volumes have, and returns what
// it is now.
func hostFolder(t *testing.T, path string) (is func() []string) {
	t.Helper()
	for _, err := range []error{
		os.MkdirAll(filepath.Join(path, "deep"), 0o700), os.WriteFile(filepath.Join(path, "precious"), []byte("precious"), 0o600),
		os.WriteFile(filepath.Join(path, "deep/precious"), []byte("precious"), 0o600), os.Mkdir(filepath.Join(path, "empty"), 0o700),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return func() []string {
		t.Helper()
		var out []string
		err := filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			var st unix.Stat_t
			if err := unix.Lstat(p, &st); err != nil {
				return err
			}
			line := fmt.Sprintf("%s %o %d:%d", strings.TrimPrefix(p, path), st.Mode, st.Uid, st.Gid)
			if !d.IsDir() {
				b, err := os.ReadFile(p)
				if err != nil {
					return err
				}
				line += fmt.Sprintf(" %q", b)
			}
			out = append(out, line)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		return out
	}
}

// showingPod has a volume of each type that shows files: precious and sub/precious.
func showingPod(o *objects, content string) *v1.Pod {
	o.configMaps = map[string]*v1.ConfigMap{"cm": {Data: map[string]string{"k": content}}}
	o.secrets = map[string]*v1.Secret{"s": {Data: map[string][]byte{"k": []byte(content)}}}
	items := []v1.KeyToPath{{Key: "k", Path: "precious"}, {Key: "k", Path: "sub/precious"}}
	p := podWith(
		configMapVolume("cm", v1.ConfigMapVolumeSource{LocalObjectReference: local("cm"), Items: items}),
		secretVolume("s", v1.SecretVolumeSource{SecretName: "s", Items: items}),
		downwardVolume("d", fieldFile("precious", "metadata.labels['k']"), fieldFile("sub/precious", "metadata.labels['k']")),
		projectedVolume("p", v1.VolumeProjection{Secret: &v1.SecretProjection{LocalObjectReference: local("s"), Items: items}}),
	)
	p.Labels = map[string]string{"k": content}
	group := int64(os.Getgid())
	p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &group}
	return p
}

// Whatever a container makes of a volume that shows files, an update shows the new ones, and the
// clean-up removes them all; but nothing of the host is written, changed or removed.
func TestVolumesThatContainersChange(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(attacks)) {
		t.Run(name, func(t *testing.T) {
			m, _ := newManager(t)
			o := &objects{}
			m.reader().objects = o
			host := filepath.Join(m.host.root, "host")
			is := hostFolder(t, host)
			want := is()
			attack := func(mounted map[string]crispec.Volume) {
				t.Helper()
				for _, v := range mounted {
					if err := attacks[name](v.HostPath, host); err != nil {
						t.Fatal(err)
					}
				}
			}
			var mounted map[string]crispec.Volume
			for _, content := range []string{"old", "new"} {
				p := showingPod(o, content)
				var err error
				for range 2 { // an attack, then an update; an attack, and nothing is new
					if mounted != nil {
						attack(mounted)
					}
					if mounted, err = m.setup(t, p); err != nil {
						t.Fatal(err)
					}
					for _, v := range mounted {
						_ = os.RemoveAll(filepath.Join(v.HostPath, "away")) // of the container
						checkShows(t, v.HostPath, files(map[string]string{"precious": content, "sub/precious": content}))
					}
				}
			}
			if d := cmp.Diff(want, is()); d != "" {
				t.Errorf("after updates, the host's folder (-was +is):\n%s", d)
			}
			attack(mounted)
			if err := m.Teardown(t.Context(), uid); err != nil {
				t.Error(err)
			}
			if got := tree(t, filepath.Join(m.host.root, "pods", uid)); !slices.Equal(got, []string{"plugins", "volumes"}) {
				t.Errorf("left over: %v", got)
			}
			if d := cmp.Diff(want, is()); d != "" {
				t.Errorf("after the clean-up, the host's folder (-was +is):\n%s", d)
			}
		})
	}
}

// A container that was given the pod's folder, by a hostPath, may put links in the place of the
// agent's own folders: nothing is made, mounted or removed through them.
func TestPodFoldersThatContainersChange(t *testing.T) {
	for _, at := range []string{
		"volumes", "volumes/kubernetes.io~configmap", "volumes/kubernetes.io~configmap/cm", "volumes/kubernetes.io~empty-dir", "volumes/kubernetes.io~empty-dir/e",
		"volumes/kubernetes.io~secret", "plugins", "plugins/kubernetes.io~empty-dir", "plugins/kubernetes.io~empty-dir/e", "plugins/kubernetes.io~empty-dir/e/ready",
		"volumes/kubernetes.io~csi", "volumes/kubernetes.io~nfs", "volume-subpaths", "volume-subpaths/v", "volume-subpaths/v/c", "volume-subpaths/v/c/0", "volumeDevices", "volumeDevices/kubernetes.io~csi",
	} {
		for _, before := range []string{"set-up", "clean-up"} {
			t.Run(before+"/"+at, func(t *testing.T) {
				m, fake := newManager(t)
				o := &objects{}
				m.reader().objects = o
				p := showingPod(o, "content")
				p.Spec.Volumes = append(p.Spec.Volumes, emptyDir("e", ""))
				p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, v1.VolumeMount{Name: "e", MountPath: "/e"})
				host, podDir := filepath.Join(m.host.root, "host"), filepath.Join(m.host.root, "pods", uid)
				is := hostFolder(t, host)
				// As if it were a pod's, so that there is something to be found in it by the names
				// that are looked for.
				for _, dir := range []string{"cm", "e", "v/c/0", "kubernetes.io~configmap/cm", "kubernetes.io~empty-dir/e", "kubernetes.io~secret/s", "kubernetes.io~csi/v", "c/0", "0"} {
					if err := os.MkdirAll(filepath.Join(host, dir, "deep"), 0o700); err != nil {
						t.Fatal(err)
					}
				}
				if before == "clean-up" {
					if _, err := m.setup(t, p); err != nil {
						t.Fatal(err)
					}
				}
				want, link := is(), filepath.Join(podDir, at)
				for _, err := range []error{os.RemoveAll(link), os.MkdirAll(filepath.Dir(link), 0o750), os.Symlink(host, link)} {
					if err != nil {
						t.Fatal(err)
					}
				}
				mounts := len(fake.MountPoints)
				if before == "set-up" {
					_, err := m.setup(t, p)
					if err == nil && strings.HasPrefix(at, "volumes/kubernetes.io~configmap") {
						t.Error("a volume was set up through a link")
					}
					if at == "volumes" && len(fake.MountPoints) > mounts {
						t.Errorf("mounted: %v", fake.MountPoints)
					}
				}
				err := m.Teardown(t.Context(), uid)
				if err != nil && !errors.Is(err, unix.ELOOP) && !errors.Is(err, unix.ENOTDIR) {
					t.Error(err)
				}
				if d := cmp.Diff(want, is()); d != "" {
					t.Errorf("the host's folder (-was +is):\n%s", d)
				}
				if err == nil {
					return
				}
				if !strings.Contains(err.Error(), link) {
					t.Errorf("the error does not name the link %s: %v", link, err)
				}
				// The words of the error help.
				if err := os.Remove(link); err != nil {
					t.Fatal(err)
				}
				if err := m.Teardown(t.Context(), uid); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// Names of objects of the API become names of files only if they are such: none leads out of where
// it belongs.
func TestNamesThatLeadUp(t *testing.T) {
	d := newDriven(t, nil)
	o := testObjects()
	o.configMaps["up"] = &v1.ConfigMap{Data: map[string]string{"../up": "x"}}
	o.configMaps["reserved"] = &v1.ConfigMap{Data: map[string]string{"..data": "x"}}
	o.secrets["up"] = &v1.Secret{Data: map[string][]byte{"..": []byte("x")}}
	block := v1.PersistentVolumeBlock
	bind := func(claim, volume string, source v1.PersistentVolumeSource, change func(*v1.PersistentVolume)) v1.Volume {
		_, pv := d.storage.bind(claim, source)
		if change != nil {
			change(pv)
		}
		pv.Name = volume
		return claimVolume("v", claim)
	}
	isBlock := func(pv *v1.PersistentVolume) { pv.Spec.VolumeMode = &block }
	driver := func(name string) v1.PersistentVolumeSource {
		return v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: name, VolumeHandle: "../../handle"}}
	}
	items := []v1.KeyToPath{{Key: "a", Path: "x/../../up"}}
	for name, v := range map[string]v1.Volume{
		"emptyDir":            emptyDir("../up", ""),
		"emptyDir ..":         emptyDir("..", ""),
		"memory":              emptyDir("../up", v1.StorageMediumMemory),
		"configMap":           configMapVolume("../up", v1.ConfigMapVolumeSource{LocalObjectReference: local("cm")}),
		"key of a configMap":  configMapVolume("v", v1.ConfigMapVolumeSource{LocalObjectReference: local("up")}),
		"key like the link":   configMapVolume("v", v1.ConfigMapVolumeSource{LocalObjectReference: local("reserved")}),
		"key of a secret":     secretVolume("v", v1.SecretVolumeSource{SecretName: "up"}),
		"path of an item":     configMapVolume("v", v1.ConfigMapVolumeSource{LocalObjectReference: local("cm"), Items: items}),
		"path of a field":     downwardVolume("v", fieldFile("../up", "metadata.name")),
		"path of a token":     projectedVolume("v", v1.VolumeProjection{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "../up"}}),
		"hostPath":            hostPath("v", d.host.root+"/pods/../up", v1.HostPathDirectoryOrCreate),
		"nfs":                 {Name: "../up", VolumeSource: v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "s", Path: "/"}}},
		"NFS option":          {Name: "v", VolumeSource: v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "--options-source=up", Path: "/"}}},
		"inline CSI":          {Name: "../up", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: driverName}}},
		"inline CSI's driver": {Name: "v", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "../up"}}},
		"PV of NFS":           bind("a", "../up", nfsSource(), nil),
		"PV of CSI":           bind("b", "../up", driver(driverName), nil),
		"PV of CSI, ..":       bind("c", "..", driver(driverName), nil),
		"PV of a CSI disk":    bind("d", "../up", driver(driverName), isBlock),
		"PV's driver":         bind("e", "pv", driver("../up"), nil),
		"PV's driver, disk":   bind("f", "pv", driver("../../up"), isBlock),
		"PV of a disk":        bind("g", "../up", v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: "/dev/null"}}, isBlock),
		"PV of a folder":      bind("h", "../up", v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: d.host.root}}, nil),
	} {
		t.Run(name, func(t *testing.T) {
			d.objects.drivers["../up"], d.objects.drivers["../../up"] = d.objects.drivers[driverName], d.objects.drivers[driverName]
			d.reader().objects = o
			d.fake.ResetLog()
			p := podWith(v)
			if strings.Contains(name, "disk") {
				p.Spec.Containers[0].VolumeMounts, p.Spec.Containers[0].VolumeDevices = nil, []v1.VolumeDevice{{Name: "v", DevicePath: "/dev/v"}}
			}
			if _, err := d.setup(t, p); err == nil {
				t.Error("the volume was set up")
			}
			if err := d.Teardown(t.Context(), uid); err != nil {
				t.Error(err)
			}
			for _, file := range tree(t, d.host.root) {
				if strings.Contains(file, "up") || strings.Contains(file, "handle") {
					t.Errorf("made: %s", file)
				}
			}
			if calls := d.calls(); len(calls) > 0 || len(d.fake.GetLog()) > 0 {
				t.Errorf("calls of the driver %v, mounts %v", calls, d.fake.GetLog())
			}
		})
	}
	for _, bad := range []types.UID{"..", "../up", "", "."} {
		p := podWith(emptyDir("v", ""))
		p.UID = bad
		if _, err := d.Setup(t.Context(), p, Inputs{}); err == nil {
			t.Errorf("the UID %q was accepted", bad)
		}
	}
	for _, s := range []crispec.Subpath{{Volume: "../up", Container: "c", Path: "a"}, {Volume: "v", Container: "../../up", Path: "a"}, {Volume: "v", Container: "c", Path: "../up"}} {
		s.Root = filepath.Join(d.host.root, "pods")
		target, err := d.BindSubpath(t.Context(), podWith(), s)
		messagestest.SawError(err)
		if err == nil {
			t.Errorf("%+v is bound at %s", s, target)
		}
	}
}

// Where no directory can be made the container is told which one it does not get.
func TestSubpathThatCannotBeMade(t *testing.T) {
	m, _ := newManager(t)
	s := crispec.Subpath{Volume: "v", Container: "c", Path: "new/deep", Root: "/proc/self/fdinfo"}
	_, err := m.BindSubpath(t.Context(), podWith(hostPath("v", s.Root, "")), s)
	messagestest.SawError(err)
	if want := `failed to create subPath directory for volumeMount "v" of container "c"`; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// The same for what is kept beside the mounts of CSI drivers.
func TestCSIFoldersThatContainersChange(t *testing.T) {
	for at, refused := range map[string]bool{
		"vol_data.json.new -> precious": false, "vol_data.json -> precious": false, " -> ": true, "../../kubernetes.io~csi -> ": true,
	} {
		t.Run(at, func(t *testing.T) {
			d := newDriven(t, nil)
			d.claim("c")
			p := d.user("one", "c")
			host := filepath.Join(d.host.root, "host")
			is := hostFolder(t, host)
			want := is()
			from, to, _ := strings.Cut(at, " -> ")
			link := filepath.Join(publishDir(filepath.Join(d.host.root, "pods/one"), "pv-c"), from)
			for _, err := range []error{os.MkdirAll(filepath.Dir(link), 0o750), os.Symlink(filepath.Join(host, to), link)} {
				if err != nil {
					t.Fatal(err)
				}
			}
			if _, err := d.setup(t, p); refused && !errors.Is(err, unix.ELOOP) {
				t.Errorf("set up with %v, want a refusal of the link", err)
			}
			if refused {
				if err := os.Remove(link); err != nil {
					t.Fatal(err)
				}
			}
			if err := d.Teardown(t.Context(), "one"); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(want, is()); diff != "" {
				t.Errorf("the host's folder (-was +is):\n%s", diff)
			}
		})
	}
}

// tree lists what is below dir.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, _ fs.DirEntry, err error) error {
		if err == nil && path != "." {
			out = append(out, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

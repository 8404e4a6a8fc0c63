package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"berth/internal/host/safepath"
	"berth/internal/runtime/crispec"
)

// Objects returns the API objects that volumes contain.
type Objects interface {
	// ConfigMap returns the newest version, which callers must not change; a missing object is a
	// NotFound API error.
	ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error)
	// Secret is like ConfigMap.
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
	// Token returns a valid token of the pod's service account.
	Token(ctx context.Context, p *v1.Pod, src *v1.ServiceAccountTokenProjection) (string, error)
}

// Certificates returns trust bundles and pod certificates. Both methods return PEM.
type Certificates interface {
	// TrustBundle returns the certificates of the source; a missing bundle is a NotFound API error.
	TrustBundle(ctx context.Context, p *v1.Pod, src *v1.ClusterTrustBundleProjection) ([]byte, error)
	// PodCertificate returns the key and certificate chain that were issued for the source with
	// this index in the volume.
	PodCertificate(p *v1.Pod, volume string, source int) (key, chain []byte, err error)
}

// reader reads the content of volumes.
type reader struct {
	objects      Objects
	certificates Certificates
	node         func() (*v1.Node, bool) // the newest Node, and whether it is known
}

// read adds the files of the volume to the payload.
func (r *reader) read(ctx context.Context, to payload, v *volume) error {
	switch src := &v.spec.VolumeSource; {
	case src.Secret != nil:
		return r.addSecret(ctx, to, v.pod, src.Secret.SecretName, newProjection(src.Secret.Items, src.Secret.DefaultMode, src.Secret.Optional))
	case src.DownwardAPI != nil:
		return r.addDownward(to, v.pod, src.DownwardAPI.Items, src.DownwardAPI.DefaultMode)
	case src.ConfigMap != nil:
		return r.addConfigMap(ctx, to, v.pod, src.ConfigMap.Name, newProjection(src.ConfigMap.Items, src.ConfigMap.DefaultMode, src.ConfigMap.Optional))
	default:
		return r.addProjected(ctx, to, v)
	}
}

// payloads are volumes whose files the agent writes. They are in a directory or tmpfs like that of
// an emptyDir.
type payloads struct {
	host    *host
	folders *folders
	medium  v1.StorageMedium
	reader  *reader
}

func (k *payloads) prepare(ctx context.Context, v *volume) error {
	files := payload{}
	if err := k.reader.read(ctx, files, v); err != nil {
		return err
	}
	v.input, v.live = files, true
	return nil
}

// setup updates the volume's files, or leaves them unchanged if there are no inputs.
func (k *payloads) setup(_ context.Context, v *volume) (outcome, error) {
	done := outcome{mounted: crispec.Volume{HostPath: v.dir(), ReadOnly: true, SELinuxRelabel: true}}
	files, read := v.input.(payload)
	if !read {
		if _, err := k.host.files.Lstat(filepath.Join(v.dir(), dataLink)); err != nil {
			return outcome{}, errors.New("what it shows was not read before")
		}
		return done, nil
	}
	made, err := k.folders.ensureDir(v.pod, dirVolume{
		dir:    v.dir(),
		marker: filepath.Join(v.podDir, "plugins", emptyDirPlugin, "wrapped_"+v.name(), "ready"),
		src:    &v1.EmptyDirVolumeSource{Medium: k.medium},
	})
	if err != nil {
		return outcome{}, err
	}
	dir, err := k.host.files.Open(v.dir()) // after the mount of its filesystem
	if err != nil {
		return outcome{}, err
	}
	defer dir.Close()
	if err := makeMountPoints(dir, mountPointsWithin(v.pod, v.spec.Name), files); err != nil {
		return outcome{}, err
	}
	changed, err := writeAtomically(dir, files, fsGroup(v.pod), k.host.log)
	if err != nil {
		return outcome{}, err
	}
	done.fresh = made || changed
	return done, nil
}

// mountPointsWithin returns the paths at which containers mount other volumes below this one,
// relative to it and without nested ones. A container cannot create them itself, since the volume
// is read-only to it.
func mountPointsWithin(p *v1.Pod, volume string) []string {
	var out []string
	for _, c := range containersOf(p) {
		for _, outer := range c.VolumeMounts {
			if outer.Name != volume || outer.SubPath != "" || outer.SubPathExpr != "" {
				continue
			}
			var within []string
			for _, inner := range c.VolumeMounts {
				if rel, ok := strings.CutPrefix(rooted(inner.MountPath), strings.TrimSuffix(rooted(outer.MountPath), "/")+"/"); ok && rel != "" {
					within = append(within, rel)
				}
			}
			for _, rel := range within {
				covered := slices.ContainsFunc(within, func(other string) bool { return strings.HasPrefix(rel, other+"/") })
				if !covered {
					out = append(out, rel)
				}
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func rooted(mountPath string) string { return path.Join("/", mountPath) }

// makeMountPoints creates the directories in the volume's root. Those that the payload contains are
// skipped.
func makeMountPoints(dir *os.File, points []string, files payload) error {
	if len(points) == 0 {
		return nil
	}
	root, err := os.OpenRoot(safepath.Self(int(dir.Fd())))
	if err != nil {
		return err
	}
	defer root.Close()
	for _, point := range points {
		element, _, _ := strings.Cut(point, "/")
		if strings.HasPrefix(element, reservedPrefix) || files.has(element) {
			continue
		}
		if err := root.MkdirAll(point, 0o755); err != nil {
			return fmt.Errorf("make mount point %s: %w", point, err)
		}
	}
	return nil
}

// has reports whether a path of the payload begins with the element.
func (p payload) has(element string) bool {
	for name := range p {
		if name == element || strings.HasPrefix(name, element+"/") {
			return true
		}
	}
	return false
}

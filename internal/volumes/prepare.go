package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"berth/internal/crispec"
)

// Objects is what volumes show of the API server's objects.
type Objects interface {
	// ConfigMap returns the newest copy, which is not changed; what does not exist is a NotFound error of the API.
	ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error)
	// Secret is like ConfigMap.
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
	// Token returns a valid token of the pod's service account.
	Token(ctx context.Context, p *v1.Pod, src *v1.ServiceAccountTokenProjection) (string, error)
}

// Certificates is what volumes show of whom the cluster trusts, and of who its pods are. Both return PEM.
type Certificates interface {
	// TrustBundle returns the certificates of the source; a bundle that does not exist is a NotFound error of the API.
	TrustBundle(ctx context.Context, p *v1.Pod, src *v1.ClusterTrustBundleProjection) ([]byte, error)
	// PodCertificate returns what was issued to the pod for the source of this index of the volume.
	PodCertificate(p *v1.Pod, volume string, source int) (key, chain []byte, err error)
}

// payloadKind is a type of volume whose files the agent writes.
type payloadKind struct {
	plugin string // directory name of the type, with the slash escaped
	name   string // as errors call it
	medium v1.StorageMedium
}

var (
	configMapKind = payloadKind{"kubernetes.io~configmap", "configMap", v1.StorageMediumDefault}
	// The others may hold what must not reach a disk.
	secretKind    = payloadKind{"kubernetes.io~secret", "secret", v1.StorageMediumMemory}
	downwardKind  = payloadKind{"kubernetes.io~downward-api", "downwardAPI", v1.StorageMediumMemory}
	projectedKind = payloadKind{"kubernetes.io~projected", "projected", v1.StorageMediumMemory}
)

func payloadKindOf(v *v1.Volume) (payloadKind, bool) {
	switch {
	case v.ConfigMap != nil:
		return configMapKind, true
	case v.Secret != nil:
		return secretKind, true
	case v.DownwardAPI != nil:
		return downwardKind, true
	case v.Projected != nil:
		return projectedKind, true
	}
	return payloadKind{}, false
}

// Inputs are what the volumes of one pod show, as of one moment; they hold secrets.
type Inputs struct {
	payloads map[string]payload // by volume
	bound    map[string]bound   // by volume
	again    bool               // some volume is to be published again
}

// Live reports whether a pod has volumes that follow what they show, and so want a Setup in every pass.
func (in Inputs) Live() bool { return len(in.payloads) > 0 || in.again }

// Prepare reads all that the pod's volumes are made of; it makes nothing. The inputs are those of the volumes that did not fail. Until it has
// succeeded once, nothing of the pod is to be made; later, a volume without inputs goes on showing what it shows.
func (m *Manager) Prepare(ctx context.Context, p *v1.Pod) (Inputs, Errors) {
	type result struct {
		files payload
		bound bound
		err   error
	}
	began := time.Now()
	needed := neededVolumes(p)
	results := make([]result, len(p.Spec.Volumes))
	var wg sync.WaitGroup
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if _, ok := payloadKindOf(v); ok && needed[v.Name] {
			wg.Go(func() { results[i].files, results[i].err = m.payloadOf(ctx, p, v) })
		} else if claim, _ := claimOf(p, v); claim != "" && needed[v.Name] {
			wg.Go(func() {
				if results[i].bound, results[i].err = m.boundTo(ctx, p, v); results[i].err == nil && results[i].bound.Spec.CSI != nil {
					results[i].err = m.prepareCSI(ctx, p, v.Name, persistentCSI(results[i].bound))
				}
			})
		} else if v.CSI != nil && needed[v.Name] {
			wg.Go(func() { results[i].err = m.prepareCSI(ctx, p, v.Name, inlineCSI(p, v)) })
		}
	}
	wg.Wait()
	in := Inputs{payloads: map[string]payload{}, bound: map[string]bound{}}
	var errs Errors
	for i, r := range results {
		name := p.Spec.Volumes[i].Name
		switch {
		case r.err != nil:
			e := failed(name, r.err)
			if e.Class == MountFailed {
				m.operated(ctx, pluginOf(&p.Spec.Volumes[i], r.bound), MountVolume, time.Since(began), e)
			}
			errs = append(errs, e)
		case r.files != nil:
			in.payloads[name] = r.files
		case r.bound.PersistentVolume != nil:
			in.bound[name] = r.bound
		}
	}
	m.csi.note(func() { in.again = m.csi.republish[p.UID] })
	return in, errs
}

// payloadOf returns the files of the volume, which is of a payloadKind.
func (m *Manager) payloadOf(ctx context.Context, p *v1.Pod, v *v1.Volume) (payload, error) {
	files := payload{}
	kind, _ := payloadKindOf(v)
	if needsObjects(v) && m.objects == nil || needsCertificates(v) && m.certificates == nil {
		return nil, fmt.Errorf("cannot setup %s volume %s because kube client is not configured", kind.name, v.Name)
	}
	var err error
	switch {
	case v.ConfigMap != nil:
		err = m.addConfigMap(ctx, files, p, v.ConfigMap.Name, newProjection(v.ConfigMap.Items, v.ConfigMap.DefaultMode, v.ConfigMap.Optional))
	case v.Secret != nil:
		err = m.addSecret(ctx, files, p, v.Secret.SecretName, newProjection(v.Secret.Items, v.Secret.DefaultMode, v.Secret.Optional))
	case v.DownwardAPI != nil:
		err = m.addDownward(files, p, v.DownwardAPI.Items, v.DownwardAPI.DefaultMode)
	case v.Projected != nil:
		var errs []error
		for i := range v.Projected.Sources {
			if err := m.addSource(ctx, files, p, v, i); err != nil {
				errs = append(errs, err)
			}
		}
		err = utilerrors.NewAggregate(errs)
	}
	if err != nil {
		return nil, err
	}
	return files, nil
}

// needsObjects reports whether the volume shows anything but the pod itself.
func needsObjects(v *v1.Volume) bool {
	if v.Projected == nil {
		return v.ConfigMap != nil || v.Secret != nil
	}
	for i := range v.Projected.Sources {
		if v.Projected.Sources[i].DownwardAPI == nil {
			return true
		}
	}
	return false
}

// needsCertificates reports whether the volume shows whom the cluster trusts, or who the pod is.
func needsCertificates(v *v1.Volume) bool {
	return v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(s v1.VolumeProjection) bool {
		return s.ClusterTrustBundle != nil || s.PodCertificate != nil
	})
}

// addSource adds the source of this index of a projected volume; later ones win.
func (m *Manager) addSource(ctx context.Context, to payload, p *v1.Pod, v *v1.Volume, source int) error {
	s, mode := &v.Projected.Sources[source], v.Projected.DefaultMode
	switch {
	case s.ConfigMap != nil:
		return m.addConfigMap(ctx, to, p, s.ConfigMap.Name, newProjection(s.ConfigMap.Items, mode, s.ConfigMap.Optional))
	case s.Secret != nil:
		return m.addSecret(ctx, to, p, s.Secret.Name, newProjection(s.Secret.Items, mode, s.Secret.Optional))
	case s.DownwardAPI != nil:
		return m.addDownward(to, p, s.DownwardAPI.Items, mode)
	case s.ServiceAccountToken != nil:
		token, err := m.objects.Token(ctx, p, s.ServiceAccountToken)
		if err != nil {
			return err
		}
		return to.add(s.ServiceAccountToken.Path, credential(p, mode, []byte(token)))
	case s.ClusterTrustBundle != nil:
		anchors, err := m.certificates.TrustBundle(ctx, p, s.ClusterTrustBundle)
		if err != nil {
			return err
		}
		return to.add(s.ClusterTrustBundle.Path, credential(p, mode, anchors))
	case s.PodCertificate != nil:
		return m.addPodCertificate(to, p, v, source)
	}
	return errors.New("a source of the projected volume is of no known type")
}

// addPodCertificate adds the files of a podCertificate source: key and certificates in one, or apart.
func (m *Manager) addPodCertificate(to payload, p *v1.Pod, v *v1.Volume, source int) error {
	src, mode := v.Projected.Sources[source].PodCertificate, v.Projected.DefaultMode
	key, chain, err := m.certificates.PodCertificate(p, v.Name, source)
	if err != nil {
		return err
	}
	for _, file := range []struct {
		path string
		data []byte
	}{
		{src.CredentialBundlePath, slices.Concat(key, chain)}, {src.KeyPath, key}, {src.CertificateChainPath, chain},
	} {
		if file.path == "" {
			continue
		}
		if err := to.add(file.path, credential(p, mode, file.data)); err != nil {
			return err
		}
	}
	return nil
}

func (m *Manager) addConfigMap(ctx context.Context, to payload, p *v1.Pod, name string, j projection) error {
	object, err := m.objects.ConfigMap(ctx, p.Namespace, name)
	if apierrors.IsNotFound(err) && j.optional {
		return nil
	}
	if err != nil {
		return err
	}
	data := make(map[string][]byte, len(object.Data)+len(object.BinaryData))
	for key, value := range object.Data {
		data[key] = []byte(value)
	}
	for key, value := range object.BinaryData {
		data[key] = value
	}
	return to.addKeys(data, j, "configmap references non-existent config key: ")
}

func (m *Manager) addSecret(ctx context.Context, to payload, p *v1.Pod, name string, j projection) error {
	object, err := m.objects.Secret(ctx, p.Namespace, name)
	if apierrors.IsNotFound(err) && j.optional {
		return nil
	}
	if err != nil {
		return err
	}
	return to.addKeys(object.Data, j, "references non-existent secret key: ")
}

// addDownward adds fields and resources of the pod (Kubernetes documentation, "Downward API").
func (m *Manager) addDownward(to payload, p *v1.Pod, items []v1.DownwardAPIVolumeFile, mode *int32) error {
	var errs []error
	for i := range items {
		item := &items[i]
		value, err := m.downwardValue(p, item)
		if err == nil {
			err = to.add(item.Path, content{data: []byte(value), mode: fileMode(item.Mode, mode)})
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return utilerrors.NewAggregate(errs)
}

func (m *Manager) downwardValue(p *v1.Pod, item *v1.DownwardAPIVolumeFile) (string, error) {
	switch {
	case item.FieldRef != nil:
		if value, ok := crispec.MetadataField(p, item.FieldRef.FieldPath); ok {
			return value, nil
		}
		return "", fmt.Errorf("unsupported fieldPath: %v", item.FieldRef.FieldPath)
	case item.ResourceFieldRef != nil:
		c := crispec.FindContainer(p, item.ResourceFieldRef.ContainerName)
		if c == nil {
			return "", fmt.Errorf("container %s not found", item.ResourceFieldRef.ContainerName)
		}
		return crispec.ResourceField(p, c, item.ResourceFieldRef, m.allocatable())
	}
	return "", fmt.Errorf("file %q shows neither a field nor a resource", item.Path)
}

// credential returns a file that only its reader may see (KEP-2451). Where the pod says who that is, by its fsGroup or
// by one user of all its containers, others are shut out; else the volume's mode decides.
func credential(p *v1.Pod, mode *int32, data []byte) content {
	user := commonUser(p)
	if user == nil && fsGroup(p) == nil {
		return content{data: data, mode: fileMode(nil, mode)}
	}
	return content{data: data, mode: fs.FileMode(0o600), owner: user}
}

// commonUser returns the user that all containers of the pod explicitly run as, or nil.
func commonUser(p *v1.Pod) *int64 {
	var common *int64
	for _, c := range containersOf(p) {
		var user *int64
		if s := p.Spec.SecurityContext; s != nil {
			user = s.RunAsUser
		}
		if s := c.SecurityContext; s != nil && s.RunAsUser != nil {
			user = s.RunAsUser
		}
		if user == nil || (common != nil && *user != *common) {
			return nil
		}
		common = user
	}
	return common
}

func fsGroup(p *v1.Pod) *int64 {
	if p.Spec.SecurityContext == nil {
		return nil
	}
	return p.Spec.SecurityContext.FSGroup
}

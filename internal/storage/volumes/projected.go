package volumes

import (
	"context"
	"errors"
	"io/fs"
	"slices"

	v1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
)

func (r *reader) addProjected(ctx context.Context, to payload, v *volume) error {
	var errs []error
	for i := range v.spec.Projected.Sources {
		if err := r.addSource(ctx, to, v, i); err != nil {
			errs = append(errs, err)
		}
	}
	return utilerrors.NewAggregate(errs)
}

// addSource adds the source with this index of a projected volume; later sources replace files of
// earlier ones.
func (r *reader) addSource(ctx context.Context, to payload, v *volume, source int) error {
	p, mode := v.pod, v.spec.Projected.DefaultMode
	s := &v.spec.Projected.Sources[source]
	switch {
	case s.ConfigMap != nil:
		return r.addConfigMap(ctx, to, p, s.ConfigMap.Name, newProjection(s.ConfigMap.Items, mode, s.ConfigMap.Optional))
	case s.Secret != nil:
		return r.addSecret(ctx, to, p, s.Secret.Name, newProjection(s.Secret.Items, mode, s.Secret.Optional))
	case s.DownwardAPI != nil:
		return r.addDownward(to, p, s.DownwardAPI.Items, mode)
	case s.ServiceAccountToken != nil:
		token, err := r.objects.Token(ctx, p, s.ServiceAccountToken)
		if err != nil {
			return err
		}
		return to.add(s.ServiceAccountToken.Path, credential(p, mode, []byte(token)))
	case s.ClusterTrustBundle != nil:
		anchors, err := r.certificates.TrustBundle(ctx, p, s.ClusterTrustBundle)
		if err != nil {
			return err
		}
		return to.add(s.ClusterTrustBundle.Path, credential(p, mode, anchors))
	case s.PodCertificate != nil:
		return r.addPodCertificate(to, v, source)
	}
	return errors.New("a source of the projected volume is of no known type")
}

// addPodCertificate adds the files of a podCertificate source: key and certificates in one file or
// in separate ones.
func (r *reader) addPodCertificate(to payload, v *volume, source int) error {
	src, mode := v.spec.Projected.Sources[source].PodCertificate, v.spec.Projected.DefaultMode
	key, chain, err := r.certificates.PodCertificate(v.pod, v.spec.Name, source)
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
		if err := to.add(file.path, credential(v.pod, mode, file.data)); err != nil {
			return err
		}
	}
	return nil
}

// credential returns a file that only its user can read (KEP-2451). If the pod specifies the user,
// by its fsGroup or by one user of all its containers, others have no access; otherwise the
// volume's mode applies.
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

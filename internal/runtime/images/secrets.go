package images

import (
	"context"
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"

	"berth/internal/record/journal"
)

// Secrets reads Secrets from the API server or manifests.
type Secrets interface {
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
}

// pullSecrets returns the credentials of the pod's imagePullSecrets. Missing and invalid secrets
// are reported and skipped.
func (p *Puller) pullSecrets(ctx context.Context, r request) keyring {
	ring := keyring{}
	var names []string
	var errs []error
	for _, ref := range r.pod.Spec.ImagePullSecrets {
		s, err := p.pullSecret(ctx, r.pod.Namespace, ref.Name)
		var auths map[string]auth
		if err == nil {
			auths, err = authsOfSecret(s)
		}
		if ctx.Err() != nil {
			return ring
		}
		if err != nil {
			names = append(names, ref.Name)
			errs = append(errs, fmt.Errorf("secret %q: %w", ref.Name, err))
			continue
		}
		ring.add(auths, &pullSecret{UID: string(s.UID), Namespace: s.Namespace, Name: s.Name})
	}
	if len(errs) > 0 {
		if !r.silent {
			p.recorder.Event(r.pod, "", v1.EventTypeWarning, "FailedToRetrieveImagePullSecret",
				fmt.Sprintf("Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.", strings.Join(names, ", ")))
		}
		e := p.entry(r, "go on without some image pull secrets")
		e.Error = journal.Error(errors.Join(errs...))
		p.journal.Record(e)
	}
	return ring
}

func (p *Puller) pullSecret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	return p.secrets.Secret(ctx, namespace, name)
}

// authsOfSecret reads a secret of one of the two docker config types.
func authsOfSecret(s *v1.Secret) (map[string]auth, error) {
	key, parse := v1.DockerConfigJsonKey, parseDockerConfigJSON
	switch s.Type {
	case v1.SecretTypeDockerConfigJson:
	case v1.SecretTypeDockercfg:
		key, parse = v1.DockerConfigKey, parseDockerCfg
	default:
		return nil, fmt.Errorf("is of type %s: credentials of registries are in secrets of type %s or %s", s.Type, v1.SecretTypeDockerConfigJson, v1.SecretTypeDockercfg)
	}
	b, ok := s.Data[key]
	if !ok {
		return nil, fmt.Errorf("has no key %s", key)
	}
	auths, err := parse(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	return auths, nil
}

package images

import (
	"context"
	"slices"
	"strings"

	"berth/internal/config"
)

// Verification determines when a pod must prove access to a present image.
type Verification struct {
	// Policy is KubeletConfiguration's imagePullCredentialsVerificationPolicy; "" is
	// NeverVerifyPreloadedImages.
	Policy config.ImagePullCredentialsVerificationPolicy
	// Allowed is KubeletConfiguration's preloadedImagesVerificationAllowlist: names without tag and
	// digest, or prefixes of such that end in "/*".
	Allowed []string
}

// exempt reports whether the policy allows every pod to use an image without pull record.
func (v Verification) exempt(repository string) bool {
	switch v.Policy {
	case config.NeverVerify, config.NeverVerifyPreloadedImages, "":
		return true
	case config.NeverVerifyAllowlistedImages:
		return slices.ContainsFunc(v.Allowed, func(allowed string) bool {
			if prefix, ok := strings.CutSuffix(allowed, "*"); ok {
				return strings.HasPrefix(repository, prefix)
			}
			return repository == allowed
		})
	}
	return false
}

// match reports whether the pod's secrets give access to an image that was pulled like this: one
// contains a recorded credential, or is the recorded secret object. It also returns those with a
// recorded credential; the other secrets' contents were not verified with a registry.
func (w pulledWith) match(secrets []credential) (ok bool, proven []pullSecret) {
	for _, c := range secrets {
		s := *c.secret
		s.CredentialHash = c.auth.hash()
		for _, known := range w.KubernetesSecrets {
			ok = ok || s.UID != "" && known.replacedBy(s)
			if known.CredentialHash == s.CredentialHash {
				ok, proven = true, append(proven, s)
				break
			}
		}
	}
	return ok, proven
}

// mayUse reports whether the pod may use the present image ref without another pull.
func (p *Puller) mayUse(ctx context.Context, r request, ref string, secrets func() []credential) bool {
	if p.records == nil || p.verify.Policy == config.NeverVerify {
		return true
	}
	result := mustAuthenticate
	defer func() { p.metrics.checked(result) }()
	record, err := p.records.find(ref)
	if err != nil {
		p.log.Warn("the record of an image's pull cannot be read: pods must prove again that they may use it", "image", r.image, "error", err)
	}
	if record == nil {
		if p.records.pulling(r.names) || !p.verify.exempt(r.repository) {
			return false
		}
		result = policyAllowed
		return true
	}
	with := record.CredentialMapping[r.repository]
	if with.NodePodsAccessible {
		result = recordFound
		return true
	}
	ok, proven := with.match(secrets())
	if !ok {
		if ok, err = p.providers.opens(ctx, r.names, r.pod, with.KubernetesServiceAccounts); err != nil {
			p.log.Warn("whether the pod's service account gives access to an image cannot be found out: it must prove so again", "image", r.image, "error", err)
			result = checkFailed
		}
	}
	if ok {
		result = recordFound
	}
	if len(proven) == 0 {
		return ok
	}
	if err := p.records.add(ref, r.repository, pulledWith{KubernetesSecrets: proven}); err != nil {
		p.log.Warn("the record of an image's pull is not brought up to date", "image", r.image, "error", err)
	}
	return true
}

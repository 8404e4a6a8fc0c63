package images

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/distribution/reference"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// otherDigests returns, for an absent image that is requested by digest, the digests of its
// repository on the node, as a message suffix; "" if there are none.
func (p *Puller) otherDigests(ctx context.Context, r request, present *runtimeapi.Image) string {
	ref, err := reference.ParseNormalizedNamed(r.image)
	digested, ok := ref.(reference.Digested)
	if err != nil || !ok || present != nil {
		return ""
	}
	all, err := p.runtime.ListImages(ctx)
	if err != nil {
		return "" // the original error is reported anyway
	}
	tag := ""
	if tagged, ok := ref.(reference.Tagged); ok {
		tag = tagged.Tag()
	}
	return computeOtherDigests(all, reference.TrimNamed(ref).String(), tag, digested.Digest().String())
}

func computeOtherDigests(all []*runtimeapi.Image, repository, tag, asked string) string {
	var found []string
	for _, image := range all {
		var digests []string
		for _, name := range image.GetRepoDigests() {
			if digest, ok := strings.CutPrefix(name, repository+"@"); ok && digest != asked {
				digests = append(digests, digest)
			}
		}
		for _, name := range image.GetRepoTags() {
			has, ok := strings.CutPrefix(name, repository+":")
			switch {
			case !ok || tag != "" && has != tag:
			case len(digests) == 0:
				found = append(found, fmt.Sprintf("%s has no digest on this node, as it was imported from an archive of docker's old format", name))
			default:
				found = append(found, fmt.Sprintf("%s has digest %s on this node", name, strings.Join(digests, " and ")))
			}
		}
	}
	if len(found) == 0 {
		return ""
	}
	slices.Sort(found)
	return ": " + strings.Join(found, ", ")
}

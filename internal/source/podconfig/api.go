package podconfig

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	"berth/internal/pod"
	"berth/internal/source/manifest"
	"berth/internal/source/validation"
)

// apiPath is the path of problems with pods from the API server.
const apiPath = "API server"

// pathOf returns where a problem of the pod is to be fixed.
func pathOf(src pod.Source, p *v1.Pod) string {
	if src == pod.APISource {
		return apiPath
	}
	return p.Annotations[pod.ManifestAnnotation]
}

// PodWatch watches the pods that are bound to this node in the API server.
type PodWatch interface {
	// Run watches them until ctx is done.
	Run(ctx context.Context) error
	// List returns the pods. They are shared and have no managedFields; an unchanged pod is the
	// same pointer as before. synced is false until the API server's first list is complete: then
	// the list is empty or a cached one, whose pods may start, but a missing pod must not be
	// terminated.
	List() (pods []*v1.Pod, synced bool)
}

// apiSource provides the pods that are bound to this node in the API server, without those that
// have no valid identity. The API server has validated all else, possibly with newer fields and
// rules than the agent's. Differs from the kubelet, which does not validate these pods.
type apiSource struct {
	watch func(changed func()) PodWatch

	pods    []*v1.Pod                    // the last list
	refused map[*v1.Pod]manifest.Problem // the rejected pods of the last list
	taken   []*v1.Pod                    // the last set handed over
}

func (s *apiSource) run(ctx context.Context, handOver func(snapshot)) error {
	changed := make(chan struct{}, 1)
	w := s.watch(func() { wake(changed) })
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return w.Run(ctx) })
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-changed:
			if pods, synced := w.List(); synced || len(pods) > 0 {
				n := s.check(pods)
				n.partial = !synced
				handOver(n)
			}
		}
	}
	return g.Wait()
}

// check rejects pods without a valid identity. An accepted pod whose identity becomes invalid keeps
// its last version.
func (s *apiSource) check(pods []*v1.Pod) snapshot {
	head, tail := commonEnds(s.pods, pods, func(a, b *v1.Pod) bool { return a == b })
	before, out := s.refused, snapshot{pods: make([]*v1.Pod, 0, len(pods))}
	s.refused = map[*v1.Pod]manifest.Problem{}
	for i, p := range pods {
		problem, bad := before[p]
		if i >= head && i < len(pods)-tail {
			problem, bad = refusal(p)
		}
		if !bad {
			out.pods = append(out.pods, p)
			continue
		}
		s.refused[p] = problem
		out.problems = append(out.problems, problem)
		if j := slices.IndexFunc(s.taken, func(t *v1.Pod) bool { return t.UID == p.UID && t.Name == p.Name && t.Namespace == p.Namespace }); j >= 0 {
			out.pods = append(out.pods, s.taken[j])
		}
	}
	s.pods, s.taken = pods, slices.Clone(out.pods)
	return out
}

// refusal returns why the pod is rejected, if it is.
func refusal(p *v1.Pod) (manifest.Problem, bool) {
	errs := validation.ValidateIdentity(p)
	if len(errs) == 0 {
		return manifest.Problem{}, false
	}
	out := manifest.Problem{Source: pod.APISource, Path: apiPath, Severity: manifest.SeverityError}
	out.Message = fmt.Sprintf("pod %q of namespace %q: %v", validation.Shorten(p.Name), validation.Shorten(p.Namespace), errs[0])
	if len(utilvalidation.IsDNS1123Subdomain(p.Name)) == 0 && len(utilvalidation.IsDNS1123Label(p.Namespace)) == 0 {
		out.Namespace, out.Name = p.Namespace, p.Name // store the problem under a valid name only
	}
	return out, true
}

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

// apiPath stands for the manifest of a pod that the API server has.
const apiPath = "API server"

// pathOf returns where a problem of the pod is to be mended.
func pathOf(src pod.Source, p *v1.Pod) string {
	if src == pod.APISource {
		return apiPath
	}
	return p.Annotations[pod.ManifestAnnotation]
}

// PodWatch follows the pods that the API server has bound to this node.
type PodWatch interface {
	// Run follows them until ctx is done.
	Run(ctx context.Context) error
	// List returns the pods. They are shared, and without managedFields; one that has not changed
	// is the same pointer as before. synced is false before the API server's first list is
	// complete: they are none then, or what is known of an earlier time, of which pods may start
	// and none that is missing ends.
	List() (pods []*v1.Pod, synced bool)
}

// apiSource hands over the pods that the API server has bound to this node, without those that
// cannot be told apart by their names. Everything else of a pod was checked by the API server,
// which may know newer fields and rules than the agent. Differs from the kubelet, which checks
// nothing of these pods.
type apiSource struct {
	watch func(changed func()) PodWatch

	pods    []*v1.Pod                    // as they came last
	refused map[*v1.Pod]manifest.Problem // those of them that are refused
	taken   []*v1.Pod                    // what was handed over last
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

// check refuses the pods without an identity. A pod that was taken and has become such a one stays
// as it was.
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

// refusal returns why the pod is refused, if it is.
func refusal(p *v1.Pod) (manifest.Problem, bool) {
	errs := validation.ValidateIdentity(p)
	if len(errs) == 0 {
		return manifest.Problem{}, false
	}
	out := manifest.Problem{Source: pod.APISource, Path: apiPath, Severity: manifest.SeverityError}
	out.Message = fmt.Sprintf("pod %q of namespace %q: %v", validation.Shorten(p.Name), validation.Shorten(p.Namespace), errs[0])
	if len(utilvalidation.IsDNS1123Subdomain(p.Name)) == 0 && len(utilvalidation.IsDNS1123Label(p.Namespace)) == 0 {
		out.Namespace, out.Name = p.Namespace, p.Name // what is looked up by it is kept under it
	}
	return out, true
}

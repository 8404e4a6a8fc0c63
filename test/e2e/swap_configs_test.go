//go:build e2e && kubelet

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// flatten puts the leaves of a JSON value into the map, by their paths. What a list has is named by
// what tells its elements apart.
func flatten(path string, v any, into map[string]string) {
	switch v := v.(type) {
	case map[string]any:
		for key, e := range v {
			flatten(path+"."+key, e, into)
		}
	case []any:
		for i, e := range v {
			name := fmt.Sprint(i)
			if m, ok := e.(map[string]any); ok {
				for _, key := range []string{"key", "container_path", "name"} {
					if s, ok := m[key].(string); ok {
						name = s
						break
					}
				}
			}
			flatten(path+"["+name+"]", e, into)
		}
	default:
		into[path] = fmt.Sprint(v)
	}
}

var (
	addresses = regexp.MustCompile(`\b10\.\d+\.\d+\.\d+\b`)
	logFile   = regexp.MustCompile(`/containers/([a-z]+)/[0-9a-f]{8}\b`)
	claims    = regexp.MustCompile(`device=[0-9a-f-]{36}`)
	jobs      = regexp.MustCompile(`job-[a-z0-9]{5}`)
	chance    = regexp.MustCompile(`^\.annotations\.kubernetes\.io/config\.(seen|hash)$|^\.devices\[/dev/n[01]\]|example\.com/null|EXAMPLE_COM_NULL|controller-uid$|cpuset_cpus$`)
)

// nameless replaces what no two pods have in common. What is a matter of chance besides, is
// left out: which device a pod is given, and whether a container began with all CPUs that are
// shared now, which its cgroup tells.
func (s *swapNode) nameless(made swapPods, now pods) func(string) string {
	names := []string{fmt.Sprint(made.port), "PORT"}
	for _, p := range now {
		names = append(names, string(p.UID), "UID")
		for _, v := range p.Spec.Volumes {
			if strings.HasPrefix(v.Name, "kube-api-access-") {
				names = append(names, v.Name, "kube-api-access")
			}
		}
		if m := p.Annotations["kubernetes.io/config.mirror"]; m != "" {
			names = append(names, m, "UID")
		}
	}
	same := strings.NewReplacer(names...)
	return func(text string) string {
		text = addresses.ReplaceAllString(same.Replace(text), "ADDRESS")
		text = jobs.ReplaceAllString(claims.ReplaceAllString(text, "device=CLAIM"), "job")
		return logFile.ReplaceAllString(text, "/containers/$1/FILE")
	}
}

// told is what an agent told the runtime of the sandboxes and containers of all pods, and the
// kernel of their cgroups, by pod and container: every value by its name.
func (s *swapNode) told(made swapPods) map[string]map[string]string {
	s.t.Helper()
	now := s.asRun()
	nameless, out := s.nameless(made, now), map[string]map[string]string{}
	keep := func(name, id string, info map[string]string) {
		var said struct{ Config any }
		must(s.t, json.Unmarshal([]byte(info["info"]), &said))
		fields, clean := map[string]string{}, map[string]string{}
		flatten("", said.Config, fields)
		for path, value := range fields {
			if !chance.MatchString(path) {
				clean[nameless(path)] = nameless(value)
			}
		}
		s.addCgroup(clean, id)
		out[nameless(name)] = clean
	}
	sandboxes, err := s.cri().ListPodSandbox(s.ctx, &runtimeapi.ListPodSandboxRequest{})
	must(s.t, err)
	for _, b := range sandboxes.Items {
		status, err := s.cri().PodSandboxStatus(s.ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: b.Id, Verbose: true})
		must(s.t, err)
		keep(b.Metadata.Name, "pod"+b.Metadata.Uid, status.Info)
	}
	containers, err := s.cri().ListContainers(s.ctx, &runtimeapi.ListContainersRequest{})
	must(s.t, err)
	for _, c := range containers.Containers {
		if c.Metadata.Attempt > 0 || c.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
			continue // whether one that has ended is still there is a matter of time
		}
		status, err := s.cri().ContainerStatus(s.ctx, &runtimeapi.ContainerStatusRequest{ContainerId: c.Id, Verbose: true})
		must(s.t, err)
		keep(c.Labels["io.kubernetes.pod.name"]+"/"+c.Metadata.Name, c.Id, status.Info)
	}
	return out
}

// addCgroup adds the limits of a cgroup.
func (s *swapNode) addCgroup(to map[string]string, name string) {
	for _, dir := range s.place.cgroupTree() {
		if filepath.Base(dir) != name {
			continue
		}
		for _, file := range []string{
			"cpu.shares", "cpu.cfs_quota_us", "memory.limit_in_bytes", "pids.max", "cpuset.cpus", "cpuset.mems",
			"cpu.weight", "cpu.max", "memory.max", "memory.min", "memory.oom.group",
		} {
			if b, err := os.ReadFile(filepath.Join(dir, file)); err == nil {
				to["cgroup "+file] = strings.TrimSpace(string(b))
			}
		}
	}
}

// unlike are the differences between what the kubelet and Berth tell of the same pods: of whom,
// what, and why it makes none to the pod.
var unlike = []struct{ of, path, kubelet, berth, why string }{
	{`.*`, `\.linux\.resources\.cpu_period`, `100000`, ``, "without a quota it means nothing"},
	{`pinned/main`, `\.linux\.resources\.cpu_quota`, `-1`, ``, "both are no quota"},
	{`pinned`, `\.linux\.resources\.cpu_quota`, `-1`, `100000`, "the cgroup of the pod has none; only runtimes that are virtual machines go by what is told of the sandbox"},
	{`.*/.*`, `\.linux\.resources\.hugepage_limits\[\d\]\.page_size`, `.*`, ``, "this machine has no cgroups for huge pages"},
	{`.*/.*`, `\.mounts\[.*\]\.selinux_relabel`, ``, `true`, "SELinux is off on this machine"},
	{`static-.*`, `\.annotations\.berth\.dev/manifest`, ``, `.*`, "Berth shows of which manifest a pod is"},
}

// What Berth tells the runtime and the kernel of a pod is what the kubelet tells them, with the
// differences that are listed.
func TestSwapSameConfigs(t *testing.T) {
	s := newSwapNode(t, sharingConfig(splitCPUs(t)))
	told := func() map[string]map[string]string {
		s.startDrivers()
		return s.told(s.makePods())
	}
	a := s.startBerth()
	berth := told()
	s.unmakePods()
	s.stop(a)
	s.startReal()
	kubelet := told()
	if len(kubelet) < 40 {
		t.Errorf("there are only %d sandboxes and containers", len(kubelet))
	}
	used := map[int]bool{}
	for name, theirs := range kubelet {
		ours, ok := berth[name]
		if !ok {
			t.Errorf("berth has no %s", name)
		}
		for _, path := range pathsOf(theirs, ours) {
			if theirs[path] == ours[path] {
				continue
			}
			i := slices.IndexFunc(unlike, func(u struct{ of, path, kubelet, berth, why string }) bool {
				return matches(u.of, name) && matches(u.path, path) && matches(u.kubelet, theirs[path]) && matches(u.berth, ours[path])
			})
			if used[i] = true; i < 0 {
				t.Errorf("%s of %s is %q with the kubelet, %q with berth", path, name, theirs[path], ours[path])
			}
		}
	}
	for i, u := range unlike {
		if !used[i] {
			t.Errorf("the difference in %s of %s is none any more", u.path, u.of)
		}
	}
}

func matches(pattern, text string) bool {
	return regexp.MustCompile("^(?:" + pattern + ")$").MatchString(text)
}

// pathsOf are the paths of both.
func pathsOf(a, b map[string]string) []string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return slices.Sorted(maps.Keys(all))
}

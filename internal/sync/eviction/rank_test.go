package eviction

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"berth/internal/observe/stats"
	"berth/internal/pod"
)

// named returns a pod.
func named(name string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: pod.UID("uid-" + name)}}
}

func TestRank(t *testing.T) {
	takes := func(name string, used, request uint64, priority int32) candidate {
		return candidate{pod: named(name), measured: true, used: used, request: request, priority: priority}
	}
	of := func(name string, change func(c *candidate)) candidate {
		c := takes(name, 10, 0, 0)
		change(&c)
		return c
	}
	now := metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	born := func(name string, after time.Duration) candidate {
		return of(name, func(c *candidate) { c.pod.CreationTimestamp = metav1.NewTime(now.Add(after)) })
	}
	for _, tt := range []struct {
		name string
		what v1.ResourceName
		pods []candidate
		want []string
	}{
		{"more than was asked for, then priority, then by how much", memory, []candidate{
			takes("within", 900, 1000, -5), takes("exactly", 1000, 1000, -6), takes("important", 5000, 0, 7), takes("little", 11, 10, 0), takes("much", 200, 100, 0),
		}, []string{"much", "little", "important", "exactly", "within"}},
		{"within what they asked for, those nearest to it first", memory, []candidate{takes("far", 1, 1000, 0), takes("near", 2000, 2010, 0)}, []string{"near", "far"}},
		{"disks likewise", storage, []candidate{takes("a", 10, 10, 0), takes("b", 500, 499, 1), takes("c", 2, 0, 0)}, []string{"c", "b", "a"}},
		{"of inodes nothing is asked for", inodes, []candidate{takes("none", 0, 0, -1), takes("few", 1, 0, 0), takes("many", 9, 0, 0)}, []string{"many", "few", "none"}},
		{"tasks: priority alone goes before their number", pids, []candidate{
			takes("important", 9000, 0, 1), takes("none", 0, 0, 0), takes("many", 5, 0, 0), takes("least", 0, 0, -1),
		}, []string{"least", "many", "none", "important"}},
		{"those of which nothing is known begin, by priority", memory, []candidate{
			takes("greedy", 1<<40, 0, -9), of("unknown", func(c *candidate) { c.measured, c.used, c.priority = false, 0, 5 }),
			of("unimportant", func(c *candidate) { c.measured, c.used = false, 0 }),
		}, []string{"unimportant", "unknown", "greedy"}},
		{"so they do for tasks", pids, []candidate{
			takes("greedy", 1<<40, 0, -9), of("unknown", func(c *candidate) { c.measured, c.used, c.priority = false, 0, 5 }),
		}, []string{"unknown", "greedy"}},
		{"critical ones have no rank of their own", memory, []candidate{
			takes("a", 1, 0, 0), of("critical", func(c *candidate) { c.critical, c.used = true, 50 }),
		}, []string{"critical", "a"}},
		{"among equals the younger, then the UID", memory, []candidate{born("b", 0), born("old", -time.Hour), born("a", 0), born("young", time.Hour)}, []string{"young", "a", "b", "old"}},
		{"amounts without end", memory, []candidate{takes("request", 0, math.MaxUint64, 0), takes("a", 5, 4, 0), takes("use", math.MaxUint64, 0, 0)}, []string{"use", "a", "request"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rank(tt.what, tt.pods)
			var got []string
			for i := range tt.pods {
				got = append(got, tt.pods[i].pod.Name)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func amounts(memory, storage string) v1.ResourceList {
	out := v1.ResourceList{}
	for name, s := range map[v1.ResourceName]string{v1.ResourceMemory: memory, v1.ResourceEphemeralStorage: storage} {
		if s != "" {
			out[name] = resource.MustParse(s)
		}
	}
	return out
}

// asks returns a container that asks for so much.
func asks(name, memory, storage string) v1.Container {
	return v1.Container{Name: name, Resources: v1.ResourceRequirements{Requests: amounts(memory, storage)}}
}

func TestRequestOf(t *testing.T) {
	for _, tt := range []struct {
		name            string
		spec            v1.PodSpec
		memory, storage uint64
	}{
		{"nothing", v1.PodSpec{Containers: []v1.Container{{Name: "a"}}}, 0, 0},
		{"the sum", v1.PodSpec{Containers: []v1.Container{asks("a", "1Ki", "5"), asks("b", "2Ki", ""), {Name: "c"}}}, 3072, 5},
		{"the largest init container", v1.PodSpec{
			InitContainers: []v1.Container{asks("i", "4Ki", "4"), asks("j", "1Ki", "9")}, Containers: []v1.Container{asks("a", "1Ki", "5"), asks("b", "2Ki", "")},
		}, 4096, 9},
		{"a sidecar stays", v1.PodSpec{InitContainers: []v1.Container{sidecar(asks("s", "1Ki", ""))}, Containers: []v1.Container{asks("a", "2Ki", "")}}, 3072, 0},
		{"the pod as a whole", v1.PodSpec{
			Resources: &v1.ResourceRequirements{Requests: amounts("10Ki", "")}, Containers: []v1.Container{asks("a", "1Ki", "3")},
		}, 10240, 3},
		{"overhead of what is asked for", v1.PodSpec{Overhead: amounts("1Ki", "7"), Containers: []v1.Container{asks("a", "1Ki", "")}}, 2048, 0},
	} {
		p := named("p")
		p.Spec = tt.spec
		for what, want := range map[v1.ResourceName]uint64{memory: tt.memory, storage: tt.storage, inodes: 0, pids: 0} {
			if c := newCandidate(p, what); c.request != want || c.priority != 0 || c.measured {
				t.Errorf("%s: %s: %+v, want a request of %d", tt.name, what, c, want)
			}
		}
	}
	p := named("p")
	p.Spec.Priority = ptr.To[int32](-3)
	if c := newCandidate(p, pids); c.priority != -3 {
		t.Errorf("priority %d", c.priority)
	}
}

func TestAddProcesses(t *testing.T) {
	p := named("p")
	p.Spec.Containers, p.Spec.InitContainers = []v1.Container{asks("a", "5", ""), asks("b", "", "")}, []v1.Container{asks("i", "1", "")}
	p.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "debug"}}}
	u := stats.PodUse{Memory: 100, Tasks: 7, Containers: map[string]uint64{"a": 60, "i": 2, "debug": 30, "gone": 1}}
	c := newCandidate(p, memory)
	c.addProcesses(memory, &u)
	if diff := cmp.Diff([]containerUse{{"a", 60, 5}, {"i", 2, 1}}, c.containers, cmp.AllowUnexported(containerUse{})); diff != "" || c.used != 100 || !c.measured {
		t.Errorf("memory: %+v, containers (-want +got):\n%s", c, diff)
	}
	c = newCandidate(p, pids)
	c.addProcesses(pids, &u)
	if c.used != 7 || !c.measured || c.containers != nil {
		t.Errorf("tasks: %+v", c)
	}
}

func TestAddFiles(t *testing.T) {
	p := named("p")
	p.Spec.Containers, p.Spec.InitContainers = []v1.Container{asks("a", "", "5"), asks("b", "", "")}, []v1.Container{asks("i", "", "")}
	u := stats.Local{
		Own: stats.Size{Bytes: 1, Inodes: 100}, Volumes: map[string]stats.Size{"v": {Bytes: 10, Inodes: 200}, "w": {Bytes: 20, Inodes: 300}},
		Containers: map[string]stats.ContainerFiles{
			"a": {Rootfs: stats.Size{Bytes: 100, Inodes: 400}, Logs: stats.Size{Bytes: 1000, Inodes: 500}}, "debug": {Rootfs: stats.Size{Bytes: 1 << 40}},
			"i": {Logs: stats.Size{Bytes: 10000, Inodes: 600}},
		},
	}
	for _, tt := range []struct {
		of            files
		bytes, inodes uint64
	}{
		{0, 0, 0},
		{rootfs, 100, 400},
		{logs, 11001, 1200},
		{volumes, 30, 500},
		{logs | volumes, 11031, 1700},
		{rootfs | logs | volumes, 11131, 2100},
	} {
		c, d := newCandidate(p, storage), newCandidate(p, inodes)
		c.addFiles(storage, tt.of, &u)
		d.addFiles(inodes, tt.of, &u)
		if c.used != tt.bytes || d.used != tt.inodes || !c.measured || !d.measured {
			t.Errorf("%b: %d bytes, %d inodes; want %+v", tt.of, c.used, d.used, tt)
		}
		if diff := cmp.Diff([]containerUse{{"a", 1100, 5}, {"i", 10000, 0}}, c.containers, cmp.AllowUnexported(containerUse{})); diff != "" || d.containers != nil {
			t.Errorf("%b: containers of inodes %v, of bytes (-want +got):\n%s", tt.of, d.containers, diff)
		}
	}
}

package eviction

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"berth/internal/observe/stats"
	"berth/internal/pod/lifecycle"
	"berth/internal/record/events/messagestest"
)

func TestGenerateMessage(t *testing.T) {
	asWhole := named("web")
	asWhole.Spec.Resources = &v1.ResourceRequirements{Requests: amounts("1Gi", "")}
	of := func(s Signal, value string, available, capacity uint64) *met {
		return &met{threshold: Threshold{Signal: s, Value: quantityOf(t, value)}, amount: stats.Amount{Available: available, Capacity: capacity}}
	}
	containers := []containerUse{{"a", 300 << 20, 100 << 20}, {"exact", 5, 5}, {"b", 1 << 20, 0}}
	for _, tt := range []struct {
		name        string
		met         *met
		pod         candidate
		message     string
		annotations map[string]string
	}{
		{
			"memory", of(MemoryAvailable, "1Gi", 100<<20, 8<<30),
			candidate{pod: named("web"), measured: true, used: 301 << 20, containers: containers},
			"The node was low on resource: memory. Threshold quantity: 1Gi, available: 100Mi. " +
				"Container a was using 300Mi, request is 100Mi, has larger consumption of memory. Container b was using 1Mi, request is 0, has larger consumption of memory. ",
			map[string]string{"starved_resource": "memory", "offending_containers": "a,b", "offending_containers_usage": "300Mi,1Mi"},
		},
		{
			"the pods' memory, of a pod with a request of its own", of(AllocatableMemoryAvailable, "10%", 5, 100<<20),
			candidate{pod: asWhole, measured: true, used: 1<<30 + 1<<20, request: 1 << 30},
			"The node was low on resource: memory. Threshold quantity: 10Mi, available: 5. Pod web was using 1025Mi, request is 1Gi, has larger consumption of memory. ",
			map[string]string{
				"starved_resource": "memory", "offending_pod": "web", "offending_pod_usage": "1025Mi", "offending_containers": "", "offending_containers_usage": "",
			},
		},
		{
			"a pod within its own request", of(MemoryAvailable, "1Gi", 0, 8<<30),
			candidate{pod: asWhole, measured: true, used: 1 << 30, request: 1 << 30},
			"The node was low on resource: memory. Threshold quantity: 1Gi, available: 0. ",
			map[string]string{"starved_resource": "memory", "offending_containers": "", "offending_containers_usage": ""},
		},
		{
			"a disk", of(NodeFsAvailable, "5Gi", 4<<30, 100<<30),
			candidate{pod: asWhole, measured: true, used: 301 << 20, containers: containers[:1]},
			"The node was low on resource: ephemeral-storage. Threshold quantity: 5Gi, available: 4Gi. Container a was using 300Mi, request is 100Mi, has larger consumption of ephemeral-storage. ",
			map[string]string{"starved_resource": "ephemeral-storage", "offending_containers": "a", "offending_containers_usage": "300Mi"},
		},
		{
			"inodes", of(ImageFsInodesFree, "5%", 4000, 100_000),
			candidate{pod: named("web"), measured: true, used: 70},
			"The node was low on resource: inodes. Threshold quantity: 5k, available: 4k. ",
			map[string]string{"starved_resource": "inodes", "offending_containers": "", "offending_containers_usage": ""},
		},
		{
			"tasks", of(PIDAvailable, "1k", 990, 32768),
			candidate{pod: named("web"), measured: true, used: 70},
			"The node was low on resource: pids. Threshold quantity: 1k, available: 990. ",
			map[string]string{"starved_resource": "pids", "offending_containers": "", "offending_containers_usage": ""},
		},
		{
			"a pod of which nothing runs", of(ContainerFsAvailable, "10%", 1, 1000),
			candidate{pod: named("web"), containers: containers},
			"The node was low on resource: ephemeral-storage. Threshold quantity: 100, available: 1. ", nil,
		},
		{
			"amounts beyond all numbers", of(NodeFsAvailable, "9223372036854775807", 1<<63, 1<<64-1),
			candidate{pod: named("web")},
			"The node was low on resource: ephemeral-storage. Threshold quantity: 9223372036854775807, available: 9223372036854775807. ", nil,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			message, annotations := generateMessage(tt.met, &tt.pod)
			messagestest.Saw("status", lifecycle.Evicted, message)
			if diff := cmp.Diff(tt.message, message); diff != "" {
				t.Errorf("message (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.annotations, annotations); diff != "" {
				t.Errorf("annotations (-want +got):\n%s", diff)
			}
		})
	}
}

func TestGenerateRanking(t *testing.T) {
	at := func(i int) candidate {
		return candidate{pod: named(fmt.Sprint("p", i)), measured: true, used: uint64(100 - i), request: 1 << 10, priority: int32(i)}
	}
	var many []candidate
	for i := range 9 {
		many = append(many, at(i))
	}
	spared := at(0)
	spared.critical = true
	for _, tt := range []struct {
		name         string
		what         v1.ResourceName
		pods         []candidate
		victim, most int
		want         string
	}{
		{"one", memory, many[:1], 0, 5, "Pods by rank: default/p0 (uses 100, request 1Ki, priority 0, evicted). "},
		{"those in front of it are critical", storage, []candidate{spared, many[1]}, 1, 5, "Pods by rank: default/p0 (uses 100, request 1Ki, priority 0, spared: critical), default/p1 (uses 99, request 1Ki, priority 1, evicted). "},
		{"many", pids, many, 0, 2, "Pods by rank: default/p0 (tasks 100, priority 0, evicted), default/p1 (tasks 99, priority 1), and 7 more. "},
		{"many, and the victim is far behind", inodes, many, 7, 1, "Pods by rank: default/p0 (uses 100, priority 0), default/p7 (uses 93, priority 7, evicted), and 7 more. "},
		{"nothing runs", memory, []candidate{{pod: named("new")}}, 0, 5, "Pods by rank: default/new (nothing of it runs, priority 0, evicted). "},
	} {
		if diff := cmp.Diff(tt.want, generateRanking(tt.what, tt.pods, tt.victim, tt.most)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	for i := range 5000 {
		many = append(many, at(i))
	}
	if n := strings.Count(generateRanking(memory, many, 0, mostExplained), "default/"); n != mostExplained {
		t.Errorf("%d pods of 5,009 in the journal, want %d", n, mostExplained)
	}
}

func TestGenerateChoice(t *testing.T) {
	at := func(name string, used, request uint64, priority int32) candidate {
		return candidate{pod: named(name), measured: true, used: used, request: request, priority: priority}
	}
	leaving, critical := at("a", 9, 0, 0), at("b", 9, 0, 0)
	leaving.leaving, critical.critical = true, true
	for _, tt := range []struct {
		name   string
		what   v1.ResourceName
		pods   []candidate
		victim int
		want   string
	}{
		{"alone", memory, []candidate{at("a", 9, 0, 0)}, 0, "no other pod can be evicted"},
		{"the others are critical", memory, []candidate{critical, at("a", 9, 0, 0), critical}, 1, "no other pod can be evicted"},
		{"leaves already", memory, []candidate{leaving, at("b", 9, 0, 0)}, 0, "it is being evicted already, and its grace period is shortened"},
		{"nothing runs", memory, []candidate{{pod: named("a")}, at("b", 9, 0, 0)}, 0, "nothing of it runs, and of default/b something does"},
		{"above its request", memory, []candidate{at("a", 9, 8, 5), at("b", 8, 8, 0)}, 0, "it uses more than it requests, which goes before priority, and default/b does not"},
		{"priority", storage, []candidate{at("a", 9, 8, 0), critical, at("c", 99, 8, 5)}, 0, "its priority is 0, that of default/c 5"},
		{"tasks", pids, []candidate{at("a", 9, 0, 0), at("b", 8, 0, 0)}, 0, "of the same priority it has most tasks, 9, and default/b 8"},
		{
			"beyond the request", memory,
			[]candidate{at("a", 3<<20, 5<<20, 0), at("b", 0, 4<<20, 0)},
			0,
			"of the same priority its use is the most beyond its request, by -2Mi, that of default/b by -4Mi",
		},
		{"equal", inodes, []candidate{at("a", 9, 0, 0), at("b", 9, 0, 0)}, 0, "of those that are equal it is the youngest, or the first by UID; the next is default/b"},
	} {
		if diff := cmp.Diff(tt.want, generateChoice(tt.what, tt.pods, tt.victim)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// The journal keeps why a pod was chosen, also of a node with many pods.
func TestExplanationFitsTheJournal(t *testing.T) {
	m := &met{threshold: Threshold{Signal: MemoryAvailable, Value: quantityOf(t, "1Gi"), Grace: time.Minute}}
	m.read, m.since = time.Unix(100, 0), time.Unix(40, 0)
	var many []candidate
	for i := range 30 {
		many = append(many, candidate{pod: named(strings.Repeat("x", 200) + fmt.Sprint(i)), measured: true, used: uint64(100 - i)})
	}
	got := generateExplanation(m, "Short. ", many, 0)
	end := ". Read at 1970-01-01T00:01:40Z. Met since 1970-01-01T00:00:40Z, for its grace period of 1m0s."
	if len(got) > 2048 || !strings.HasPrefix(got, "memory.available<1Gi: Short. Pods by rank: ") || !strings.HasSuffix(got, end) {
		t.Errorf("%d bytes: %s", len(got), got)
	}
}

func TestPressures(t *testing.T) {
	p := NewPressures()
	const memory, disk, tasks = v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure
	type conditions = []v1.NodeConditionType
	if p.Conditions() != nil || p.Has(memory) {
		t.Errorf("at first %v", p.Conditions())
	}
	for _, tt := range []struct {
		of               conditions
		is               map[v1.NodeConditionType]bool
		began, ended, in conditions
	}{
		{conditions{memory, tasks}, map[v1.NodeConditionType]bool{tasks: true, memory: true, disk: true}, conditions{memory, tasks}, nil, conditions{memory, tasks}},
		{conditions{disk}, map[v1.NodeConditionType]bool{disk: true}, conditions{disk}, nil, conditions{memory, disk, tasks}},
		{conditions{disk}, map[v1.NodeConditionType]bool{disk: true}, nil, nil, conditions{memory, disk, tasks}},
		{conditions{memory, tasks}, map[v1.NodeConditionType]bool{tasks: true}, nil, conditions{memory}, conditions{disk, tasks}},
		{conditions{memory, tasks}, nil, nil, conditions{tasks}, conditions{disk}},
	} {
		began, ended := p.set(tt.of, tt.is)
		if diff := cmp.Diff([]conditions{tt.began, tt.ended, tt.in}, []conditions{began, ended, p.Conditions()}); diff != "" {
			t.Errorf("%v: %v: began, ended, in all (-want +got):\n%s", tt.of, tt.is, diff)
		}
	}
	if !p.Has(disk) || p.Has(tasks) {
		t.Error("Has differs from Conditions")
	}
}

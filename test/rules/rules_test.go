// Package rules holds the rules of the repository that a compiler does not check: which package may
// import which, what the binary may link, what every package documents. The tables and rules are in
// rules_test.go, each rule with its reason and the fix; the checks are in checks_test.go and its
// neighbours; examples_test.go shows each rule what it must find and what it must accept.
package rules

import (
	"bytes"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// ranks gives every package of the product its rank. A package imports strictly lower ranks only.
// Packages that are still to come have theirs already, so that a new package finds its place
// instead of choosing one.
var ranks = map[string]int{
	"cmd/berth": 9,

	"agent": 8,

	"internal/sync/syncloop":             7,
	"internal/sync/quarantine":           7,
	"internal/sync/drain":                7,
	"internal/resources/nodeallocatable": 7,
	"internal/api/server":                7,
	"internal/localapi":                  7,
	"internal/dashboard":                 7,

	"internal/sync/podworkers":  6,
	"internal/source/podconfig": 6,
	"internal/cluster/node":     6,

	"internal/sync/podsync":      5,
	"internal/observe/metrics":   5,
	"internal/observe/podview":   5,
	"internal/sync/eviction":     5,
	"internal/sync/nodeshutdown": 5,
	"internal/sync/admission":    5,
	"internal/sync/leftovers":    5,

	"internal/runtime/kuberuntime":        4,
	"internal/runtime/containerlogs":      4,
	"internal/observe/pleg":               4,
	"internal/observe/prober":             4,
	"internal/observe/status":             4,
	"internal/storage/volumes":            4,
	"internal/resources/podresources":     4,
	"internal/resources/containermanager": 4,

	"internal/cluster/offlinecache": 4,

	"internal/storage/csi":             2,
	"internal/storage/objects":         3,
	"internal/source/manifest":         3,
	"internal/runtime/images":          3,
	"internal/resources/devicemanager": 3,
	"internal/resources/dra":           3,
	"internal/runtime/logs":            3,
	"internal/api/nodelogs":            3,
	"internal/observe/stats":           3,
	"internal/observe/oom":             3,
	"internal/runtime/action":          3,
	"internal/runtime/crispec":         3,

	"internal/resources/cpumanager":    2,
	"internal/resources/memorymanager": 2,
	"internal/source/validation":       2,
	"internal/runtime/cri":             2,
	"internal/cluster/certs":           2,
	"internal/host/preflight":          2,
	"internal/runtime/embedded":        3,
	"internal/storage/plugins":         2,
	"internal/host/tuning":             2,
	"internal/host/systemd":            0,

	"internal/host/cgroups":              1,
	"internal/storage/mounts":            1,
	"internal/host/cgroupstat":           1,
	"internal/cluster/kube":              1,
	"internal/record/events":             2,
	"internal/pod/allocation":            1,
	"internal/record/journal":            1,
	"internal/pod/lifecycle":             1,
	"internal/runtime/userns":            1,
	"internal/record/span":               0,
	"internal/record/tracing":            2,
	"internal/api/netns":                 1,
	"internal/api/streams":               1,
	"internal/host/hostports":            1,
	"internal/host/iptables":             0,
	"internal/host/logind":               1,
	"internal/host/pressure":             1,
	"internal/resources/topologymanager": 1,
	"internal/source/defaults":           1,

	"internal/resources/devicemanager/checkpoint": 0,

	"internal/resources/machine":   0,
	"internal/host/safepath":       0,
	"internal/pod":                 0,
	"internal/explain":             4,
	"internal/config":              0,
	"internal/boltfile":            0,
	"internal/checkpoint":          0,
	"internal/health":              0,
	"internal/host/inotify":        0,
	"internal/host/selinux":        0,
	"internal/host/rootlock":       0,
	"internal/api/nodeauthz":       0,
	"internal/connlimit":           0,
	"internal/api/negotiate":       0,
	"internal/pod/strategicpatch":  0,
	"internal/localapi/store":      1,
	"internal/localapi/kinds":      1,
	"internal/localapi/apiserver":  2,
	"internal/localapi/auth":       2,
	"internal/localapi/read":       3,
	"internal/localapi/gc":         3,
	"internal/localapi/pvbinder":   3,
	"internal/localapi/scheduler":  5,
	"internal/localapi/manifests":  4,
	"internal/localapi/trusted":    3,
	"internal/localapi/podmetrics": 2,
	"internal/localapi/nodeview":   2,
	"internal/localapi/controller": 2,
	"internal/localapi/podproxy":   2,
	"internal/localapi/nodeproxy":  2,
	"internal/localapi/loopback":   0,
}

// testSupport are the packages that exist for tests, each beside what it fakes. They are not linked
// into the product, and import at most the rank of the package that they stand beside.
var testSupport = map[string]string{
	"agent/agenttest":                             "agent",
	"internal/runtime/cri/critest":                "internal/runtime/cri",
	"internal/storage/csi/csitest":                "internal/storage/csi",
	"internal/cluster/kube/kubetest":              "internal/cluster/kube",
	"internal/pod/podtest":                        "internal/pod",
	"internal/resources/machine/machinetest":      "internal/resources/machine",
	"internal/resources/devicemanager/devicetest": "internal/resources/devicemanager",
	"internal/resources/dra/dratest":              "internal/resources/dra",

	"internal/checkpoint/checkpointtest": "internal/checkpoint",

	"internal/config/coveragetest":          "internal/config",
	"internal/observe/metrics/metricstest":  "internal/observe/metrics",
	"internal/record/events/messagestest":   "internal/record/events",
	"internal/source/manifest/manifesttest": "internal/source/manifest",
}

// ban is an import that is refused although the ranks would allow it. from is a folder of this
// module, whose tests are free, or "" for everything, tests included; to is a pattern of import
// paths as the go command has them: "x/..." is x and what is below it.
type ban struct{ from, to string }

var bans = map[ban]string{
	{"internal/sync/syncloop", "berth/internal/runtime/cri"}:            "the loop must not be able to block on the runtime",
	{"internal/sync/syncloop", "berth/internal/runtime/kuberuntime"}:    "the loop must not be able to block on the runtime",
	{"internal/sync/podworkers", "berth/internal/runtime/cri"}:          "workers reach the runtime only through the steps of podsync",
	{"internal/sync/podworkers", "berth/internal/runtime/kuberuntime"}:  "workers reach the runtime only through the steps of podsync",
	{"internal/source/podconfig", "berth/internal/runtime/cri"}:         "what is desired must not depend on what runs",
	{"internal/source/podconfig", "berth/internal/runtime/kuberuntime"}: "what is desired must not depend on what runs",

	{"", "k8s.io/kubernetes/..."}:          "it is not made to be imported: it drags its own replacements of every k8s.io module",
	{"", "k8s.io/client-go/.../fake/..."}:  "the fake clientset ignores field selectors, UID preconditions and the status subresource: tests over it prove nothing; use kube/kubetest",
	{"", "github.com/google/cadvisor/..."}: "it polls; stats reads cgroups itself",
	{"internal", "log"}:                    "a component logs to the *slog.Logger that it is given",
	{"agent", "log"}:                       "a component logs to the *slog.Logger that it is given",
	{"internal", "math/rand"}:              "math/rand/v2 needs no seed and takes no lock",
	{"internal", "github.com/spf13/cobra"}: "the command line belongs to cmd/berth",
}

// linkBans are import paths, with everything below them, that must not be in the binary.
var linkBans = map[string]string{
	"k8s.io/kubernetes":                                 "not made to be imported",
	"k8s.io/client-go/kubernetes":                       "a clientset links the types of 55 API groups: about 10 MB of memory on every node; use internal/cluster/kube",
	"k8s.io/client-go/informers":                        "typed informers link the clientset; use a reflector of tools/cache over internal/cluster/kube",
	"k8s.io/client-go/listers":                          "typed listers link the types of all API groups",
	"k8s.io/apiserver":                                  "delegated authentication and authorization by it brings CEL and its parsers: about 10 MB of memory on every node",
	"github.com/containerd/containerd/v2":               "containerd is a process of its own; the agent speaks CRI, and containerd/api for what CRI lacks",
	"github.com/google/go-containerregistry":            "images are made when the bundle is built and pulled by the runtime, never by the agent",
	"github.com/google/cadvisor":                        "it polls; stats reads cgroups itself",
	"github.com/google/go-cmp":                          "for tests",
	"go.uber.org/goleak":                                "for tests",
	"google.golang.org/grpc/test":                       "for tests",
	"net/http/httptest":                                 "for tests",
	"testing":                                           "for tests: a package of the product imports a test-support package or a test helper",
	"berth/agent/agenttest":                             "test support",
	"berth/internal/runtime/cri/critest":                "test support",
	"berth/internal/storage/csi/csitest":                "test support",
	"berth/internal/resources/machine/machinetest":      "test support",
	"berth/internal/resources/devicemanager/devicetest": "test support",
	"berth/internal/resources/dra/dratest":              "test support",
	"berth/internal/cluster/kube/kubetest":              "test support",
	"berth/internal/source/manifest/manifesttest":       "test support",
	"berth/internal/observe/metrics/metricstest":        "test support",
	"berth/internal/record/events/messagestest":         "test support",
	"berth/internal/config/coveragetest":                "test support",
	"berth/internal/pod/podtest":                        "test support",

	"berth/internal/checkpoint/checkpointtest": "test support",
}

// linkExceptions are what of linkBans may be in the binary, with everything below it, and why.
var linkExceptions = map[string]string{
	"k8s.io/apiserver/pkg/server/flagz/api":   "the published types alone: they link apimachinery and nothing else",
	"k8s.io/apiserver/pkg/server/statusz/api": "the published types alone: they link apimachinery and nothing else",
}

// cgroupfsReaders are the folders whose code may name the cgroup file system, and what for.
var cgroupfsReaders = map[string]string{
	"internal/host/cgroups":    "owns it",
	"internal/host/preflight":  "checks what the host offers before the runtime is started",
	"internal/observe/stats":   "reads usage",
	"internal/host/cgroupstat": "reads usage",
	"internal/host/pressure":   "owns memory.high of kubepods and of pods that are evicted, and waits for what the kernel tells of cgroups",
}

// podFolderPackages are those whose code reaches what is in folders of pods, and only through
// package safepath.
var podFolderPackages = []string{"internal/storage/volumes", "internal/sync/podsync", "internal/runtime/userns"}

// pathUsers are the files in them that may use paths, and of what.
var pathUsers = map[string]string{
	"internal/storage/volumes/block.go":    "disks of this machine, as persistent volumes name them",
	"internal/storage/volumes/holders.go":  "the kernel's files",
	"internal/storage/volumes/hostpath.go": "what a hostPath names is its user's, links and all",
	"internal/storage/volumes/loops.go":    "the kernel's files",
	"internal/storage/volumes/local.go":    "directories of this machine, as persistent volumes name them",
}

// writers are the calls that change objects of the API server, and the packages that may make them.
var writers = map[string][]string{
	"PatchPodStatus":                   {"internal/observe/status"},
	"CreatePod":                        {"internal/observe/status"},
	"DeletePod":                        {"internal/observe/status"},
	"CreateNode":                       {"internal/cluster/node"},
	"PatchNode":                        {"internal/cluster/node", "internal/storage/csi"}, // of a driver, its id and its labels
	"PatchNodeStatus":                  {"internal/cluster/node"},
	"CreateLease":                      {"internal/cluster/node"},
	"UpdateLease":                      {"internal/cluster/node"},
	"PatchPersistentVolumeClaimStatus": {"internal/storage/volumes"},
	"CreateCSINode":                    {"internal/storage/csi"},
	"UpdateCSINode":                    {"internal/storage/csi"},
	"DeleteCSINode":                    {"internal/storage/csi"},
	"CreateEvent":                      {"internal/record/events"},
	"PatchEvent":                       {"internal/record/events"},
	"CreatePodCertificateRequest":      {"internal/storage/objects"},
	"DeleteResourceSlices":             {"internal/resources/dra"},
	"CreateCertificateSigningRequest":  {"internal/cluster/certs"},
}

// exceptions are what may break a rule about the shape of code, by the rule, each with the reason.
// One that is not needed any more is found too.
var exceptions = map[string]map[string]string{
	"recover": {
		"internal/localapi/store/damage.go": "bbolt panics, and the kernel sends SIGBUS, when the file that it maps was damaged: the store is closed and opened anew, which recovers the file",
		"bundle/cni/exec.go":                "a plugin that runs as a program and panics fails one call: in containerd's process it must not do more",
	},
	"parameters": {
		"bundle/apiserver/storage.objects.Delete":           "it is a method of storage.Interface of k8s.io/apiserver",
		"bundle/apiserver/storage.objects.GuaranteedUpdate": "it is a method of storage.Interface of k8s.io/apiserver",
		"bundle/containerd/server.mayMatch":                 "a patch of containerd calls it with the fields of two types of filters",
		"internal/record/events.Recorder.Eventf":            "it is Eventf of Kubernetes' event recorders, and a container",
	},
	"booleans": {
		"bundle/apiserver/storage.objects.GuaranteedUpdate": "it is a method of storage.Interface of k8s.io/apiserver",
		"bundle/podshim/plan.ValidateResources":             "the version of the host's cgroups is a boolean wherever the pod shim has it",
		"bundle/podshim/shims.controller.Status":            "it is a method of containerd's sandbox.Controller",
	},
	"types": {
		"agent.Config":                         "it is the configuration of a whole agent, in the public library",
		"agent.Environment":                    "it is all that an agent has from its machine, each by one field that a test replaces",
		"agent.settings":                       "it is what the configuration of each mode comes down to, a plain record",
		"internal/config.Kubelet":              "it mirrors the kubelet's flags and KubeletConfiguration",
		"internal/config.KubeletConfiguration": "it mirrors the published API type",
		"internal/pod.ContainerStatus":         "it is a plain record of what the runtime reports of a container",
	},
	"vocabulary": {
		"bundle/apiserver/nodename.go":        "a warning that clients of the local API know by its text",
		"bundle/apiserver/storage/storage.go": "an error that clients of the local API know by its text",
	},
}

// renamers are the files that replace something by a new name themselves, and what.
var renamers = map[string]string{
	"internal/localapi/store/backup.go":    "a file of objects, of any size, which is checked before",
	"internal/localapi/store/copy.go":      "a copy of all objects, of any size, which is appended to",
	"internal/localapi/store/recover.go":   "a file of objects, of any size, and a damaged one",
	"internal/sync/quarantine/crash.go":    "the report of a crash, which the Go runtime writes",
	"internal/cluster/certs/store.go":      "a link",
	"internal/runtime/embedded/log.go":     "a log that is full",
	"internal/runtime/embedded/restore.go": "content of images, of any size",
	"internal/runtime/embedded/unpack.go":  "a folder, and a link",
}

// rule is one thing that holds everywhere in the repository. check returns what breaks it, as
// "file:line: what".
type rule struct {
	name, why, fix string
	check          func(tree) []string
}

var rules = []rule{
	{
		name: "ranks", check: checkRanks,
		why: "imports that go one way only keep each package readable without its neighbours",
		fix: "move the code to the lower package, or declare at the caller the interface that it needs and hand the implementation over in agent/wire.go; a new package gets its rank in rules_test.go",
	},
	{
		name: "groups", check: checkGroups,
		why: "a group of packages can be read, tested and replaced without the groups above it",
		fix: "move what both need to a group below both, or pass it as a parameter",
	},
	{
		name: "bans", check: checkBans,
		why: "the reason stands beside each ban",
		fix: "see the reason",
	},
	{
		name: "criClients", check: checkCRIClients,
		why: "deadlines, error classes and the codec of labels hold only if every call goes through them",
		fix: "add the call to internal/runtime/cri and use cri.Client",
	},
	{
		name: "cgroupfs", check: checkCgroupfs,
		why: "two writers of one cgroup undo each other",
		fix: "ask internal/host/cgroups",
	},
	{
		name: "checkpoints", check: checkCheckpoints,
		why: "a file that survives the agent has one way to be written, to fail and to be set aside, which is tested with disks that take nothing",
		fix: "use internal/checkpoint; for what is no file of state, say in rules_test.go what it is",
	},
	{
		name: "podFolders", check: checkPodFolders,
		why: "a container may have been given its pod's folder, and may put a link on the way at any moment",
		fix: "use safepath.Root, or a descriptor that it returned (safepath.Self); for other paths, say in rules_test.go what they are of",
	},
	{
		name: "docs", check: checkDocs,
		why: "a reader decides by the package doc whether to read on: what it is, what it owns, what it reads, what it never does",
		fix: "write one package doc: `Package x …`, then the lines `Owns: …`, `Reads: …`, `Never: …` (see internal/pod/doc.go)",
	},
	{
		name: "names", check: checkNames,
		why: "a package that is named after nothing collects everything",
		fix: "name the job that the package does",
	},
	{
		name: "sleep", check: checkSleep,
		why: "a sleep cannot be cancelled, and a test that sleeps in real time is slow and flaky",
		fix: "select on a timer and ctx.Done(); in a test use a testing/synctest bubble, or wait for the thing itself",
	},
	{
		name: "skip", check: checkSkip,
		why: "a skipped test looks like one that passed",
		fix: "move a test that needs root or a runtime to test/e2e, and let it fail where it cannot run",
	},
	{
		name: "e2eTag", check: checkE2ETag,
		why: "`make test` must run as any user on any machine",
		fix: "begin the file with `//go:build e2e`",
	},
	{
		name: "exit", check: checkExit,
		why: "an exit in a package skips everything that the callers still have to close",
		fix: "return an error; only cmd/ and bench/main.go decide the exit code",
	},
	{
		name: "recover", check: checkRecover,
		why: "the agent is crash-only: a recovered panic goes on with state that nobody understands (docs/adr)",
		fix: "let the process end; the restart is invisible to pods",
	},
	{
		name: "channels", check: checkChannels,
		why: "a package-level channel is shared by two agents in one process, and outlives the bubble of the test that made it",
		fix: "make the channel in New; stop by context",
	},
	{
		name: "todo", check: checkTodo,
		why: "a note without a reason is never taken up",
		fix: "do it, or say why not yet: `TODO: … because …`",
	},
	{
		name: "workspace", check: checkWorkspace,
		why: "a go.work file or a replace directive makes a build depend on what lies around it, and `go install` refuses it",
		fix: "depend on a released version",
	},
	{
		name: "dependencies", check: checkDependencies,
		why: "a dependency is a decision: docs/dependencies.md says what each is for",
		fix: "add the row, remove the row, or do without the dependency",
	},
	{
		name: "registryVersion", check: checkRegistryVersion,
		why: "the registry writes objects that the agent reads, and the agent's types are those that it answers clients with: a field that one of them does not know is lost",
		fix: "require k8s.io/kubernetes in bundle/apiserver/go.mod, and replace the k8s.io modules there, at the version of k8s.io/api in go.mod",
	},
	{
		name: "architecture", check: checkArchitecture,
		why: "ARCHITECTURE.md is the map of what exists: a missing or an obsolete package in it misleads",
		fix: "name the package in the layout of ARCHITECTURE.md, or remove the name",
	},
	{
		name: "words", check: checkWords,
		why: "docs/words.md leads a reader of the literature to the code: a name that is gone leads nowhere",
		fix: "give the word its new home in docs/words.md, or remove its row",
	},
	{
		name: "fileLength", check: checkFileLength,
		why: "a file is read in one sitting",
		fix: "find the second owner in it; lines that move to another file of the same receiver have moved no responsibility",
	},
	{
		name: "functionLength", check: checkFunctionLength,
		why: "a function that does not fit on a screen has more than one thing to do",
		fix: "name its steps; a long table of values is a variable",
	},
	{
		name: "parameters", check: checkParameters,
		why: "with six values in a row nobody sees which is which",
		fix: "values that travel together are a type",
	},
	{
		name: "booleans", check: checkBooleans,
		why: "true at the call says nothing to a reader, and two of them are swapped unseen",
		fix: "two functions, or a type with named values",
	},
	{
		name: "types", check: checkTypes,
		why: "a type with more than 30 methods or 20 fields, counting what it embeds, owns what others should",
		fix: "find the fields that change together, and give them a type of their own",
	},
	{
		name: "embedding", check: checkEmbedding,
		why: "embedding hides who owns a method: a reader of a call cannot tell which type has the state that it uses",
		fix: "make it a named field, and call it explicitly",
	},
	{
		name: "interfaces", check: checkInterfaces,
		why: "a caller that declares what it needs needs little, and a fake of little is quickly read",
		fix: "split it along its callers; put together what one value must do from small interfaces",
	},
	{
		name: "clocks", check: checkClocks,
		why: "time is virtual in a bubble (testing/synctest): a second clock can disagree with it",
		fix: "use package time, and test in a bubble",
	},
	{
		name: "columns", check: checkColumns,
		why: "the eye loses the line of a text that is wider than a page",
		fix: "break the lines of the comment at 100 columns, a tab being 4",
	},
	{
		name: "writers", check: checkWriters,
		why: "two that write one object of the API server undo each other",
		fix: "hand what is to be written to the owner",
	},
	{
		name: "commands", check: checkCommands,
		why: "a command that nobody runs is wrong after a while, and a reader is the first to see it",
		fix: "give the block its language: sh or console if it holds commands, which `make test` then runs over a machine in memory (cmd/berth, TestDocsRun), or say above it who runs it, or why nobody: `<!-- run by: TestName -->`, `<!-- run by: make target -->`, `<!-- not run: reason -->`",
	},
	{
		name: "vocabulary", check: checkVocabulary,
		why: "who works on Kubernetes nodes searches for the words of the field, and finds nothing under others",
		fix: "use the term of docs/glossary.md that the finding names",
	},
	{
		name: "prose", check: checkProse,
		why: "the text of the repository speaks of the project alone, and of nothing that a reader of it cannot open",
		fix: "say the thing itself, or name a public source",
	},
}

// root is the root of the repository.
const root = "../.."

func TestRules(t *testing.T) {
	tr, err := readTree(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			if found := r.check(tr); len(found) > 0 {
				t.Errorf("%s\nwhy: %s\nfix: %s", strings.Join(found, "\n"), r.why, r.fix)
			}
		})
	}
}

func TestLinkSet(t *testing.T) {
	for _, tags := range []string{"", "bundle"} {
		t.Run("tags="+tags, func(t *testing.T) {
			// -e, because the archive that the tag bundle embeds may not be built yet. A package
			// that is missing is found by the compiler.
			cmd := exec.Command("go", "list", "-e", "-deps", "-tags", tags, "./cmd/berth")
			cmd.Dir = root
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("go list -deps ./cmd/berth: %v\n%s", err, &stderr)
			}
			linked := strings.Fields(string(out))
			if !slices.Contains(linked, "berth/agent") {
				t.Fatalf("go list -deps ./cmd/berth: berth/agent is not among the %d packages listed: this test looks at the wrong binary\n%s", len(linked), &stderr)
			}
			for _, found := range bannedLinks(linked) {
				t.Errorf("cmd/berth links %s\nfix: `go mod why -m` and `go list -deps -json` show who imports it", found)
			}
		})
	}
}

package rules

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// example is a small repository, by file, and what a rule finds in it.
type example struct {
	files map[string]string
	want  []string
}

const (
	goodDoc = "// Package x is an example.\n//\n// Owns: a.\n// Reads: b.\n// Never: c.\npackage x\n"
	rootMod = "module berth\n\ngo 1.26.0\n"
)

// examples holds, for each rule, repositories that break it and repositories that do not.
var examples = map[string][]example{
	"ranks": {
		{files: map[string]string{
			"internal/pod/a.go":             "package pod\n\nimport _ \"berth/internal/runtime/cri\"\n",
			"internal/runtime/cri/a.go":     "package cri\n\nimport (\n\t_ \"berth/internal/runtime/embedded\"\n\t_ \"berth/internal/runtime/cri/critest\"\n)\n",
			"internal/odd/a.go":             "package odd\n",
			"internal/storage/volumes/a.go": "package volumes\n\nimport _ \"berth/internal/strange\"\n",
			"internal/pod/podtest/a.go":     "package podtest\n\nimport (\n\t_ \"berth/internal/runtime/cri\"\n\t_ \"berth/internal/runtime/cri/critest\"\n)\n",
		}, want: []string{
			"internal/odd/a.go:1: package internal/odd has no rank",
			"internal/pod/a.go:3: internal/pod of rank 0 imports internal/runtime/cri of rank 2",
			"internal/pod/podtest/a.go:4: internal/pod/podtest, beside internal/pod of rank 0, imports internal/runtime/cri of rank 2",
			"internal/pod/podtest/a.go:5: internal/pod/podtest, beside internal/pod of rank 0, imports internal/runtime/cri/critest, beside internal/runtime/cri of rank 2",
			"internal/runtime/cri/a.go:4: internal/runtime/cri of rank 2 imports internal/runtime/embedded of rank 3",
			"internal/runtime/cri/a.go:5: internal/runtime/cri imports internal/runtime/cri/critest, which is for tests only",
			"internal/storage/volumes/a.go:3: internal/storage/volumes imports internal/strange, which has no rank",
		}},
		{files: map[string]string{
			"internal/runtime/cri/a.go":         "package cri\n\nimport _ \"berth/internal/pod\"\n",
			"internal/pod/a_test.go":            "package pod_test\n\nimport (\n\t_ \"berth/agent\"\n\t_ \"berth/internal/runtime/cri/critest\"\n)\n",
			"internal/runtime/cri/critest/a.go": "package critest\n\nimport (\n\t_ \"berth/internal/runtime/cri\"\n\t_ \"berth/internal/pod/podtest\"\n)\n",
			"test/e2e/a.go":                     "package e2e\n\nimport _ \"berth/agent\"\n",
			"bundle/go.mod":                     "module berth/bundle\n",
			"bundle/cmd/anything/main.go":       "package main\n",
		}},
	},
	"groups": {
		{files: map[string]string{
			"internal/pod/a.go":             "package pod\n\nimport _ \"berth/internal/record/journal\"\n",
			"internal/record/journal/a.go":  "package journal\n\nimport _ \"berth/internal/host/inotify\"\n",
			"internal/host/inotify/a.go":    "package inotify\n\nimport (\n\t_ \"berth/internal/config\"\n\t_ \"berth/internal/pod\"\n)\n",
			"internal/storage/volumes/a.go": "package volumes\n\nimport _ \"berth/internal/pod\"\n",
		}, want: []string{
			"internal/host/inotify/a.go:5: group host imports group pod, which depends on host",
			"internal/pod/a.go:3: group pod imports group record, which depends on pod",
			"internal/record/journal/a.go:3: group record imports group host, which depends on record",
		}},
		{files: map[string]string{
			"internal/pod/a.go":            "package pod\n\nimport _ \"berth/internal/config\"\n",
			"internal/pod/a_test.go":       "package pod_test\n\nimport _ \"berth/internal/record/journal\"\n",
			"internal/pod/podtest/a.go":    "package podtest\n\nimport _ \"berth/internal/record/journal\"\n",
			"internal/record/journal/a.go": "package journal\n\nimport (\n\t_ \"berth/internal/pod\"\n\t_ \"berth/internal/record/events\"\n)\n",
		}},
	},
	"bans": {
		{files: map[string]string{
			"internal/sync/podworkers/a.go": "package podworkers\n\nimport (\n\t_ \"berth/internal/runtime/cri\"\n\t_ \"log\"\n)\n",
			"agent/a_test.go":               "package agent\n\nimport _ \"k8s.io/client-go/kubernetes/fake\"\n",
			"cmd/berth/a.go":                "package main\n\nimport _ \"k8s.io/kubernetes/pkg/apis\"\n",
		}, want: []string{
			"agent/a_test.go:3: import of k8s.io/client-go/kubernetes/fake: " + bans[ban{"", "k8s.io/client-go/.../fake/..."}],
			"cmd/berth/a.go:3: import of k8s.io/kubernetes/pkg/apis: " + bans[ban{"", "k8s.io/kubernetes/..."}],
			"internal/sync/podworkers/a.go:4: import of berth/internal/runtime/cri: " + bans[ban{"internal/sync/podworkers", "berth/internal/runtime/cri"}],
			"internal/sync/podworkers/a.go:5: import of log: " + bans[ban{"internal", "log"}],
		}},
		{files: map[string]string{
			"internal/sync/podworkers/a.go":      "package podworkers\n\nimport (\n\t_ \"berth/internal/sync/podsync\"\n\t_ \"log/slog\"\n)\n",
			"internal/sync/podworkers/a_test.go": "package podworkers_test\n\nimport _ \"berth/internal/runtime/cri\"\n",
			"agent/a.go":                         "package agent\n\nimport _ \"k8s.io/client-go/tools/cache\"\n",
		}},
	},
	"criClients": {
		{
			files: map[string]string{"internal/observe/pleg/a.go": "package pleg\n\nvar c = runtimeapi.NewRuntimeServiceClient(nil)\n"},
			want:  []string{"internal/observe/pleg/a.go:3: NewRuntimeServiceClient: only internal/runtime/cri speaks CRI"},
		},
		{files: map[string]string{"internal/runtime/cri/a.go": "package cri\n\nvar c = runtimeapi.NewImageServiceClient(nil)\n"}},
	},
	"checkpoints": {
		{
			files: map[string]string{"internal/observe/status/a.go": "package status\n\nvar rename = os.Rename\n\nvar fail = checkpoint.Inject\n"},
			want: []string{
				"internal/observe/status/a.go:3: os.Rename: only internal/checkpoint replaces files",
				"internal/observe/status/a.go:5: checkpoint.Inject: for checkpointtest alone",
			},
		},
		{files: map[string]string{
			"internal/checkpoint/a.go":                "package checkpoint\n\nvar rename = os.Rename\n",
			"internal/checkpoint/checkpointtest/a.go": "package checkpointtest\n\nvar fail = checkpoint.Inject\n",
			"internal/cluster/certs/store.go":         "package certs\n\nvar rename = os.Rename\n",
			"cmd/berth/a.go":                          "package main\n\nvar rename = os.Rename\n",
		}},
	},
	"cgroupfs": {
		{
			files: map[string]string{"internal/storage/volumes/a.go": "package volumes\n\nconst dir = \"/sys/fs/cgroup/x\"\n"},
			want:  []string{"internal/storage/volumes/a.go:3: names the cgroup file system"},
		},
		{files: map[string]string{
			"internal/host/cgroups/a.go":         "package cgroups\n\nconst dir = \"/sys/fs/cgroup\"\n",
			"internal/storage/volumes/a_test.go": "package volumes\n\nconst dir = \"/sys/fs/cgroup\"\n",
		}},
	},
	"docs": {
		{files: map[string]string{
			"internal/a/a.go": "package a\n",
			"internal/b/a.go": goodDoc, "internal/b/b.go": goodDoc,
			"internal/c/a.go": "// Package x\n//\n// Owns: a.\n// Never: c.\n// Reads: b.\n// Owns: d.\npackage x\n",
			"internal/d/a.go": "// Something else.\n//\n// Owns: a.\n// Never: c.\n// Reads: b.\npackage x\n",
			"cmd/berth/a.go":  "//go:build linux\n\npackage main\n",
			"bundle/go.mod":   "module berth/bundle\n",
			"bundle/x/a.go":   "package x\n",
		}, want: []string{
			"bundle/x/a.go:1: package bundle/x has no doc",
			"cmd/berth/a.go:3: package cmd/berth has no doc",
			"internal/a/a.go:1: package internal/a has no doc",
			"internal/b/a.go:1: package internal/b has 2 docs",
			"internal/b/b.go:1: package internal/b has 2 docs",
			"internal/c/a.go:1: the doc does not begin with \"Package x\" and what it is",
			"internal/c/a.go:1: the doc has 2 lines `Owns: …`, and needs one",
			"internal/c/a.go:1: the line `Never: …` is out of order: Owns, Reads, Never",
			"internal/d/a.go:1: the doc does not begin with \"Package x\" and what it is",
			"internal/d/a.go:1: the line `Never: …` is out of order: Owns, Reads, Never",
		}},
		{files: map[string]string{
			"internal/a/a.go": goodDoc, "internal/a/b.go": "package x\n", "internal/a/a_test.go": "package x\n",
			"cmd/berth/a.go": "// Berth is an example.\npackage main\n",
			"bundle/go.mod":  "module berth/bundle\n", "bundle/containerd/x/a.go": "package x\n",
		}},
	},
	"names": {
		{files: map[string]string{
			"internal/util/a.go":     "package util\n",
			"internal/pod/base/a.go": "package podbase\n",
			"internal/pod/x/a.go":    "package helpers_test\n",
		}, want: []string{
			`internal/pod/base/a.go:1: package podbase in internal/pod/base is named "base"`,
			`internal/pod/x/a.go:1: package helpers in internal/pod/x is named "helpers"`,
			`internal/util/a.go:1: package util in internal/util is named "util"`,
		}},
		{files: map[string]string{"internal/pod/types.go": "package pod\n"}},
	},
	"podFolders": {
		{files: map[string]string{
			"internal/sync/podsync/a.go": "package podsync\n\nfunc f() {\n\tos.RemoveAll(dir)\n\tunix.Openat(fd, name, unix.O_RDONLY, 0)\n\tfilepath.Glob(x)\n}\n",
		}, want: []string{
			"internal/sync/podsync/a.go:4: os.RemoveAll follows links",
			"internal/sync/podsync/a.go:5: unix.Openat follows links",
			"internal/sync/podsync/a.go:6: filepath.Glob follows links",
		}},
		{files: map[string]string{
			"internal/sync/podsync/a.go":           "package podsync\n\nfunc f() {\n\tos.OpenRoot(safepath.Self(fd))\n\tunix.Openat(fd, name, unix.O_NOFOLLOW, 0)\n\tfiles.RemoveAll(x)\n}\n",
			"internal/sync/podsync/a_test.go":      "package podsync\n\nfunc f() { os.RemoveAll(dir) }\n",
			"internal/storage/volumes/hostpath.go": "package volumes\n\nfunc f() { os.Stat(path) }\n",
			"internal/runtime/images/a.go":         "package images\n\nfunc f() { os.Stat(path) }\n",
		}},
	},
	"sleep": {
		{files: map[string]string{
			"internal/pod/a.go":      "package pod\n\nfunc f() { time.Sleep(1) }\n",
			"internal/pod/a_test.go": "package pod\n\nfunc f() { time.Sleep(1) }\n",
		}, want: []string{
			"internal/pod/a.go:3: time.Sleep",
			"internal/pod/a_test.go:3: time.Sleep in a test outside of a bubble",
		}},
		{files: map[string]string{
			"internal/pod/a_test.go": "package pod\n\nimport \"testing/synctest\"\n\nfunc f() { time.Sleep(1) }\n",
			"test/e2e/a_test.go":     "package e2e\n\nfunc f() { time.Sleep(1) }\n",
		}},
	},
	"skip": {
		{
			files: map[string]string{"internal/pod/a_test.go": "package pod\n\nfunc f(t *testing.T) { t.Skip() }\n"},
			want:  []string{"internal/pod/a_test.go:3: t.Skip"},
		},
		{files: map[string]string{"internal/pod/a_test.go": "package pod\n\nfunc f(t *testing.T) { t.Fatal(list.Skip) }\n"}},
	},
	"e2eTag": {
		{
			files: map[string]string{"test/e2e/a_test.go": "package e2e\n"},
			want:  []string{"test/e2e/a_test.go:1: has no build constraint e2e"},
		},
		{files: map[string]string{"test/e2e/a_test.go": "//go:build e2e\n\npackage e2e\n", "test/e2e/doc.go": "package e2e\n"}},
	},
	"exit": {
		{files: map[string]string{
			"agent/a.go":        "package agent\n\nfunc f() { os.Exit(1) }\n",
			"internal/pod/a.go": "package pod\n\nfunc f() { log.Fatalf(``) }\n",
		}, want: []string{"agent/a.go:3: ends the process", "internal/pod/a.go:3: ends the process"}},
		{files: map[string]string{"cmd/berth/a.go": "package main\n\nfunc f() { os.Exit(1) }\n"}},
	},
	"recover": {
		{
			files: map[string]string{"agent/a.go": "package agent\n\nfunc f() { _ = recover() }\n"},
			want:  []string{"agent/a.go:3: recovers from a panic"},
		},
		{files: map[string]string{"agent/a_test.go": "package agent\n\nfunc f() { _ = recover() }\n", "agent/b.go": "package agent\n\nfunc f() { w.recover() }\n"}},
	},
	"channels": {
		{files: map[string]string{
			"internal/pod/a.go": "package pod\n\nvar a chan int\n\nvar (\n\tb = make(chan int)\n\tc = func() <-chan int { return nil }()\n)\n",
			"internal/pod/b.go": "package pod\n\nfunc f() { g(wait.NeverStop) }\n",
		}, want: []string{
			"internal/pod/b.go:3: NeverStop is a package-level channel",
			"internal/pod/a.go:3: package-level channel a",
			"internal/pod/a.go:6: package-level channel b",
			"internal/pod/a.go:7: package-level channel c",
		}},
		{files: map[string]string{"internal/pod/a.go": "package pod\n\nvar a = make([]int, 1)\n\ntype b struct{ c chan int }\n\nfunc f() { d := make(chan int); _ = d }\n"}},
	},
	"todo": {
		{files: map[string]string{
			"a.md": "one\nTO" + "DO: two\n", "internal/pod/a.go": "package pod // FIX" + "ME\n",
		}, want: []string{"a.md:2: TO" + "DO: two", "internal/pod/a.go:1: package pod // FIX" + "ME"}},
		{files: map[string]string{"a.md": "TO" + "DO: two, because one is not there\nmktemp XXXXXX\n"}},
	},
	"workspace": {
		{
			files: map[string]string{"go.work": "go 1.26\n", "go.mod": rootMod + "\nreplace a.b/c => ../c\n"},
			want:  []string{"go.mod:5: replace of a.b/c", "go.work:1: a workspace"},
		},
		{files: map[string]string{"go.mod": rootMod, "bundle/go.mod": "module berth/bundle\n\nreplace a.b/c => ../c\n"}},
	},
	"registryVersion": {
		{
			files: map[string]string{"go.mod": rootMod + "\nrequire k8s.io/api v0.2.3\n", "bundle/apiserver/go.mod": "module r\n\nrequire k8s.io/kubernetes v1.2.4\n"},
			want:  []string{"bundle/apiserver/go.mod:3: k8s.io/kubernetes is v1.2.4, and k8s.io/api v0.2.3 in go.mod wants v1.2.3"},
		},
		{
			files: map[string]string{"go.mod": rootMod, "bundle/apiserver/go.mod": "module r\n"},
			want:  []string{"bundle/apiserver/go.mod:1: k8s.io/kubernetes, or k8s.io/api in go.mod, is not required"},
		},
		{files: map[string]string{"go.mod": rootMod + "\nrequire k8s.io/api v0.2.3\n", "bundle/apiserver/go.mod": "module r\n\nrequire k8s.io/kubernetes v1.2.3\n"}},
	},
	"dependencies": {
		{files: map[string]string{
			"go.mod":               rootMod + "\nrequire (\n\ta.b/c v1.0.0\n\ta.b/d v1.0.0 // indirect\n)\n",
			"tools/go.mod":         "module berth/tools\n\ntool a.b/e/cmd/x\n\nrequire a.b/e v1.0.0 // indirect\n",
			"docs/dependencies.md": "| module | why |\n|---|---|\n| `a.b/gone` | it was useful |\n",
		}, want: []string{
			"docs/dependencies.md:3: a.b/gone is not a direct dependency of any module here",
			"go.mod:6: a.b/c has no row in docs/dependencies.md",
			"tools/go.mod:5: a.b/e has no row in docs/dependencies.md",
		}},
		{files: map[string]string{
			"go.mod":               rootMod + "\nrequire a.b/c v1.0.0\n",
			"bundle/x/go.mod":      "module berth/bundle/x\n\nrequire berth v0.0.0\n\nreplace berth => ../..\n",
			"docs/dependencies.md": "| `a.b/c` | it is useful |\n",
		}},
	},
	"architecture": {
		{files: map[string]string{
			"ARCHITECTURE.md":     "The road is internal/pod and internal/ghost.\n",
			"internal/pod/a.go":   "package pod\n",
			"internal/podx/a.go":  "package podx\n",
			"internal/podx/b_.go": "package podx\n",
		}, want: []string{"ARCHITECTURE.md: does not name internal/podx", "ARCHITECTURE.md:1: there is no package or folder internal/ghost"}},
		{files: map[string]string{
			"ARCHITECTURE.md":         "internal/pod/ is the vocabulary, see internal/pod/a.go; bundle/cmd/pack packs.\n",
			"internal/pod/a.go":       "package pod\n",
			"bundle/go.mod":           "module berth/bundle\n",
			"bundle/cmd/pack/main.go": "package main\n",
		}},
	},
	"words": {
		{files: map[string]string{
			"docs/words.md":     "| PLEG | `pod.Gone`, `podx.States`; `a.b` |\n",
			"internal/pod/a.go": "package pod\n\ntype States struct{}\n",
		}, want: []string{"docs/words.md:1: there is no pod.Gone", "docs/words.md:1: there is no podx.States"}},
		{files: map[string]string{
			"docs/words.md":     "| PLEG | `pod.States`, `pod.Kill` |\n",
			"internal/pod/a.go": "package pod\n\ntype States struct{}\n\nfunc (States) Kill() {}\n",
		}},
	},
	"fileLength": {
		{
			files: map[string]string{"internal/pod/a.go": "package pod\n" + strings.Repeat("\n", 400)},
			want:  []string{"internal/pod/a.go:1: 401 lines"},
		},
		{files: map[string]string{
			"internal/pod/a.go":      "package pod\n" + strings.Repeat("\n", 399),
			"internal/pod/a_test.go": "package pod\n" + strings.Repeat("\n", 400),
			"bench/a.go":             "package main\n" + strings.Repeat("\n", 400),
		}},
	},
	"functionLength": {
		{
			files: map[string]string{"internal/pod/a.go": "package pod\n\nfunc (m *Manager[T]) get() {\n" + strings.Repeat("\n", 79) + "}\n"},
			want:  []string{"internal/pod/a.go:3: internal/pod.Manager.get has 81 lines"},
		},
		{files: map[string]string{"internal/pod/a.go": "package pod\n\nfunc get() {\n" + strings.Repeat("\n", 78) + "}\n"}},
	},
	"parameters": {
		{
			files: map[string]string{"internal/pod/a.go": "package pod\n\nfunc f(a, b, c, d int, e, f string) {}\n"},
			want:  []string{"internal/pod/a.go:3: internal/pod.f has 6 parameters"},
		},
		{files: map[string]string{"internal/pod/a.go": "package pod\n\nfunc f(a, b, c, d int, e string) {}\n"}},
	},
	"booleans": {
		{
			files: map[string]string{"internal/pod/a.go": "package pod\n\nfunc f(a int, force bool) {}\n"},
			want:  []string{"internal/pod/a.go:3: internal/pod.f has a boolean parameter"},
		},
		{files: map[string]string{"internal/pod/a.go": "package pod\n\nfunc f(a int) (found bool) { return true }\n"}},
	},
	"types": {
		{
			files: map[string]string{
				"internal/pod/a.go": "package pod\n\ntype Manager struct{ *inner }\n\ntype inner struct{}\n\n" + methods("*Manager", 16) + "type wide struct{ " + strings.Repeat("a, ", 20) + "a int }\n",
				"internal/pod/b.go": "package pod\n\n" + strings.ReplaceAll(methods("inner", 15), "method", "other"),
			},
			want: []string{"internal/pod/a.go:3: internal/pod.Manager has 31 methods", "internal/pod/a.go:23: internal/pod.wide has 21 fields"},
		},
		{files: map[string]string{
			"internal/pod/a.go":      "package pod\n\ntype Manager struct{ " + strings.Repeat("a, ", 19) + "a int }\n\n" + methods("*Manager", 30),
			"internal/pod/a_test.go": "package pod\n\nfunc (m *Manager) b() {}\n",
		}},
	},
	"embedding": {
		{
			files: map[string]string{"internal/pod/a.go": "package pod\n\ntype a struct{ *b }\n\ntype b struct{ c }\n\ntype c struct{}\n\nfunc (c) run() {}\n"},
			want:  []string{"internal/pod/a.go:3: internal/pod.a embeds b, which has 1 methods", "internal/pod/a.go:5: internal/pod.b embeds c, which has 1 methods"},
		},
		{files: map[string]string{"internal/pod/a.go": "package pod\n\ntype a struct {\n\tplain\n\trunner\n\tsync.Mutex\n\tc c\n}\n\ntype plain struct{ x int }\n\ntype runner interface{ run() }\n\ntype c struct{}\n\nfunc (c) run() {}\n"}},
	},
	"interfaces": {
		{
			files: map[string]string{"internal/pod/a.go": "package pod\n\ntype R interface {\n\ta()\n\tb()\n\tc()\n\td()\n\te()\n}\n"},
			want:  []string{"internal/pod/a.go:3: internal/pod.R declares 5 methods"},
		},
		{files: map[string]string{"internal/pod/a.go": "package pod\n\ntype R interface {\n\tA\n\tB\n\ta()\n\tb()\n\tc()\n\td()\n}\n"}},
	},
	"clocks": {
		{
			files: map[string]string{"internal/pod/a.go": "package pod\n\ntype s struct{ now func() time.Time }\n"},
			want:  []string{"internal/pod/a.go:3: internal/pod.s has a clock of its own"},
		},
		{files: map[string]string{"internal/pod/a.go": "package pod\n\ntype s struct {\n\tat time.Time\n\tend func(x int) time.Time\n}\n"}},
	},
	"columns": {
		{
			files: map[string]string{
				"internal/pod/a.go": "package pod\n\nfunc f() {\n\t// " + strings.Repeat("wide ", 18) + "comment\n}\n",
				"bundle/go.mod":     "module berth/bundle\n",
				"bundle/x/a.go":     "package x\n\n// " + strings.Repeat("wide ", 20) + "comment\n",
			},
			want: []string{"bundle/x/a.go:3: a comment of 110 columns", "internal/pod/a.go:4: a comment of 104 columns"},
		},
		{files: map[string]string{"internal/pod/a.go": "package pod\n\n// " + strings.Repeat("wide ", 18) + "comment\n//go:embed " + strings.Repeat("x ", 60) + "\n"}},
	},
	"writers": {
		{
			files: map[string]string{"internal/cluster/node/a.go": "package node\n\nvar _ = c.PatchPodStatus(ctx)\n"},
			want:  []string{"internal/cluster/node/a.go:3: PatchPodStatus: only internal/observe/status may"},
		},
		{files: map[string]string{
			"internal/observe/status/a.go":        "package status\n\nvar _ = c.PatchPodStatus(ctx)\n",
			"internal/cluster/kube/kubetest/a.go": "package kubetest\n\nvar _ = c.PatchPodStatus(ctx)\n",
			"internal/cluster/node/a_test.go":     "package node\n\nvar _ = c.PatchPodStatus(ctx)\n",
		}},
	},
	"commands": {
		{files: map[string]string{
			"README.md":      "```\nmake\n```\n\n```bash\nmake\n```\n\n```text\n$ make\n```\n",
			"docs/a.md":      "<!-- run by: TestGone -->\n```sh\nmake\n```\n\n<!-- not run: no -->\n```yaml\na: b\n```\n",
			"docs/b.md":      "<!-- run by: TestOther -->\n```sh\nmake\n```\n```sh\n",
			"test/a_test.go": "package test\n\nfunc TestOther() {}\n",
		}, want: []string{
			"README.md:1: the block does not say its language",
			"README.md:5: the block is of bash, not of console, go, ini, json, promql, sh, text, toml, yaml",
			"README.md:9: the block has commands, which nobody runs",
			"docs/a.md:2: TestGone is no test below test/ that types the commands of pages, and no target of make",
			"docs/a.md:7: the block has no commands that could be run",
			"docs/b.md:5: the block has no end",
		}},
		{files: map[string]string{
			"Makefile":           "fresh: ## from nothing\n",
			"README.md":          "```sh\nmake\n```\n\n<!-- run by: TestReadme -->\n```console\n$ make\n```\n\n<!-- run by: make fresh -->\n```sh\nmake\n```\n",
			"docs/a.md":          "<!-- not run: it takes a day -->\n```sh\nmake\n```\n\n```yaml\na: b\n```\n",
			"test/e2e/a_test.go": "//go:build e2e\n\npackage e2e\n\nimport \"berth/test/console\"\n\nfunc TestReadme() { console.Read(\"README.md\") }\n",
		}},
	},
	"vocabulary": {
		{files: map[string]string{
			glossary:                 "## Words to avoid\n\n| avoid | use |\n|---|---|\n| `nobody`, `lent` | the subject |\n| `half way` | in progress |\n",
			"internal/pod/doc.go":    "// Package pod is lent to callers.\npackage pod\n",
			"internal/pod/a.go":      "package pod\n\nconst a, b = \"Nobody reads this\", `nobodys, talent`\n\nfunc f() {\n\tlog(\"mounted half way\")\n}\n",
			"internal/pod/a_test.go": "package pod\n\nconst c = \"nobody\"\n",
		}, want: []string{
			`internal/pod/a.go:3: "Nobody": use the subject`,
			`internal/pod/a.go:6: "half way": use in progress`,
			`internal/pod/doc.go:1: "lent": use the subject`,
		}},
		{files: map[string]string{
			glossary: "## Words to avoid\n\n| `nobody` |  |\n", "internal/pod/a.go": "package pod\n",
		}, want: []string{glossary + ":3: a word without a replacement"}},
		{files: map[string]string{
			glossary:                            "## Words to avoid\n\n| `nobody` | the subject |\n\n## More\n\n| `pod` | a term |\n",
			"internal/pod/a.go":                 "package pod\n\n// Nobody reads this.\nconst a, nobody = \"a pod\", 1\n",
			"internal/runtime/cri/critest/a.go": "package critest\n\nconst a = \"nobody\"\n",
		}},
		{files: map[string]string{glossary: "# Glossary\n"}, want: []string{glossary + ": no words to avoid are found"}},
	},
	"prose": {
		{files: map[string]string{
			"a.md":              "built in /wo" + "rk/main\nas iss" + "ue 3 says\n",
			"internal/pod/a.go": "package pod // see spec/0" + "3 and deci" + "sions.md\n",
		}, want: []string{
			`a.md:1: "/wo` + `rk/": a path of somebody's machine`,
			`a.md:2: "iss` + `ue 3": an issue that a reader cannot open`,
			`internal/pod/a.go:1: "deci` + `sions.md": a page that is not in the repository`,
			`internal/pod/a.go:1: "spec/0` + `3": a page that is not in the repository`,
		}},
		{files: map[string]string{"a.md": "the root directory /var/lib/berth/root/x, the work/ of a worker, an issue with 3 pods\n"}},
	},
}

func TestEachRuleFindsWhatItIsFor(t *testing.T) {
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			bad, good := 0, 0
			for _, e := range examples[r.name] {
				files := map[string][]byte{}
				for p, text := range e.files {
					files[p] = []byte(text)
				}
				tr, err := newTree(files)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(e.want, r.check(tr)); diff != "" {
					t.Errorf("-want +got\n%s", diff)
				}
				if len(e.want) > 0 {
					bad++
				} else {
					good++
				}
			}
			if bad == 0 || good == 0 {
				t.Errorf("the rule has %d examples that break it and %d that do not; it needs both", bad, good)
			}
		})
	}
}

func TestBannedLinks(t *testing.T) {
	got := bannedLinks(strings.Fields("berth/agent k8s.io/client-go/kubernetesx k8s.io/client-go/kubernetes/scheme testing testing/fstest k8s.io/api/core/v1 " +
		"k8s.io/apiserver/pkg/server/statusz k8s.io/apiserver/pkg/server/statusz/api/v1beta1"))
	want := []string{
		"k8s.io/apiserver/pkg/server/statusz: " + linkBans["k8s.io/apiserver"],
		"k8s.io/client-go/kubernetes/scheme: " + linkBans["k8s.io/client-go/kubernetes"],
		"testing/fstest: " + linkBans["testing"],
		"testing: " + linkBans["testing"],
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// TestTablesNameWhatExists keeps the tables of rules_test.go from pointing at names that no package
// has a rank for.
func TestTablesNameWhatExists(t *testing.T) {
	for support, parent := range testSupport {
		if _, ok := ranks[parent]; !ok || !within(support, parent) {
			t.Errorf("testSupport[%q] = %q: no package with a rank stands beside it", support, parent)
		}
		if linkBans["berth/"+support] == "" {
			t.Errorf("linkBans lacks berth/%s", support)
		}
	}
	for b := range bans {
		if _, ok := ranks[b.from]; !ok && b.from != "" && b.from != "internal" {
			t.Errorf("bans: %s has no rank", b.from)
		}
		if to, ok := strings.CutPrefix(b.to, "berth/"); ok {
			if _, ok := ranks[to]; !ok {
				t.Errorf("bans: %s has no rank", to)
			}
		}
	}
	for dir := range cgroupfsReaders {
		if _, ok := ranks[dir]; !ok {
			t.Errorf("cgroupfsReaders: %s has no rank", dir)
		}
	}
}

// methods returns n methods of a receiver.
func methods(receiver string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "func (m %s) method%d() {}\n", receiver, i)
	}
	return b.String()
}

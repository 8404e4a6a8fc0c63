package cpumanager

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"k8s.io/utils/dump"

	"berth/internal/checkpoint/checkpointtest"
	"berth/internal/resources/topologymanager"
)

func wantFile(t testing.TB, m *CPUManager, want string) {
	t.Helper()
	got, err := os.ReadFile(m.store.path)
	if err != nil || string(got) != want {
		t.Errorf("the file is\n%s, %v; want\n%s", got, err, want)
	}
}

// Files of kubelets, as people have shown them in public.
var ofKubelets = []string{
	`{"policyName":"none","defaultCpuSet":"","checksum":1353318690}`,
	`{"policyName":"static","defaultCpuSet":"0-3","checksum":611748604}`,
	`{"policyName":"static","defaultCpuSet":"0-63","checksum":1058907510}`,
	`{"policyName":"static","defaultCpuSet":"2-15,17-31,34-47,49-63","checksum":4141502832}`,
	`{"policyName":"static","defaultCpuSet":"0,4-27","entries":{"39b37746-7f5e-4064-b8e1-eebd2bfaa003":{"app":"1-3"}},"checksum":3300516549}`,
	`{"policyName":"static","defaultCpuSet":"0-1,3-33,35-63","entries":{"4378c1c9-7a86-48a0-8ad9-5a0d4ff4b3ac":{"nettools-deploy":"2,34"}},"checksum":239816225}`,
	`{"policyName":"static","defaultCpuSet":"0,2-95,97-191","entries":{"823ca0b5-ed9e-421a-bfca-76fa078f3195":{"ubuntu-netutils":"96"},"b8292fdc-57b1-4bc4-937b-34cd3dd1bcb8":{"ubuntu-netutils":"1"}},"checksum":4076905443}`,
}

// What a kubelet wrote is read, and written again byte by byte.
func TestFilesOfKubelets(t *testing.T) {
	for _, file := range ofKubelets {
		var s state
		if err := json.Unmarshal([]byte(file), &s); err != nil {
			t.Fatal(err)
		}
		p, err := decode(s.Policy, []byte(file))
		if err != nil {
			t.Errorf("%s: %v", file, err)
		}
		again, err := encode(s.Policy, p)
		if err != nil || string(again) != file {
			t.Errorf("%s, %v; want %s", again, err, file)
		}
	}
}

// The types below print as the kubelet's do, but for the names of their packages.
type (
	Checksum             uint64
	CPUManagerCheckpoint struct {
		PolicyName, DefaultCPUSet string
		Entries                   map[string]map[string]string
		Checksum                  Checksum
	}
)

func TestChecksumIsOfTheDump(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		s := state{Policy: "static", Shared: "0-3", Entries: map[string]map[string]string{}}
		for range r.IntN(12) {
			containers := map[string]string{}
			for range r.IntN(12) {
				containers[fmt.Sprintf("c%d-%s", r.IntN(30), strings.Repeat("x", r.IntN(3)))] = fmt.Sprint(r.IntN(100))
			}
			s.Entries[fmt.Sprintf("%x", r.Uint32())] = containers
		}
		text := dump.ForHash(&CPUManagerCheckpoint{s.Policy, s.Shared, s.Entries, 0})
		text = strings.NewReplacer("cpumanager.CPU", "state.CPU", "cpumanager.Check", "checksum.Check").Replace(text)
		h := fnv.New32a()
		fmt.Fprint(h, text)
		if got := s.checksum(); got != uint64(h.Sum32()) {
			t.Fatalf("the checksum of %+v is %d; want that of %s", s, got, text)
		}
	}
}

func TestLoadRefuses(t *testing.T) {
	const fix = `, please drain this node and delete the CPU manager checkpoint file "PATH" before restarting Kubelet`
	for name, test := range map[string]struct {
		file, on, want string
	}{
		"no JSON":        {file: `{`, want: "could not restore state from checkpoint: unexpected end of JSON input"},
		"empty":          {file: ``, want: "could not restore state from checkpoint: unexpected end of JSON input"},
		"wrong checksum": {file: `{"policyName":"static","defaultCpuSet":"0-7","checksum":7}`, want: "could not restore state from checkpoint: checkpoint is corrupted"},
		"other policy": {
			file: ofKubelets[0],
			want: `could not restore state from checkpoint: configured policy "static" differs from state checkpoint policy "none"`,
		},
		"bad default set": {
			file: `{"policyName":"static","defaultCpuSet":"0-x"}`,
			want: `could not restore state from checkpoint: defaultCpuSet "0-x": strconv.Atoi: parsing "x": invalid syntax`,
		},
		"bad assignment": {
			file: `{"policyName":"static","defaultCpuSet":"0-7","entries":{"u":{"c":"7-1"}}}`,
			want: `could not restore state from checkpoint: CPUs "7-1" of container c of pod u: invalid range "7-1" (7 > 1)`,
		},
		"empty default set": {
			file: `{"policyName":"static","defaultCpuSet":"","entries":{"u":{"c":"0-7"}}}`,
			want: `static policy: the default set is empty, and the containers have the CPUs "0-7"`,
		},
		"reserved CPU is not shared": {
			file: `{"policyName":"static","defaultCpuSet":"1-7","entries":{"u":{"c":"0"}}}`,
			want: `static policy: not all of the reserved CPUs "0" are in the default set "1-7"`,
		},
		"strict, and reserved CPU is shared": {
			file: `{"policyName":"static","defaultCpuSet":"0-7"}`, on: strictReservation,
			want: `static policy: the reserved CPUs "0" are in the default set "0-7", although strict-cpu-reservation keeps them out`,
		},
		"strict, and reserved CPU is somebody's": {
			file: `{"policyName":"static","defaultCpuSet":"2-7","entries":{"u":{"c":"0-1"}}}`, on: strictReservation,
			want: `static policy: the reserved CPUs "0" belong to containers, although strict-cpu-reservation keeps them free`,
		},
		"shared and owned": {
			file: `{"policyName":"static","defaultCpuSet":"0-5","entries":{"u":{"c":"5-7"}}}`,
			want: `static policy: the CPUs "5" of container c of pod u are in the default set "0-5", too`,
		},
		"owned twice": {
			file: `{"policyName":"static","defaultCpuSet":"0-3","entries":{"u":{"c":"4-6"},"v":{"c":"6-7"}}}`,
			want: `static policy: CPU 6 belongs to the pods u and v`,
		},
		"fewer CPUs online": {
			file: `{"policyName":"static","defaultCpuSet":"0-8"}`,
			want: `static policy: the CPUs that are online are "0-7", those of the file "0-8"`,
		},
		"more CPUs online": {
			file: `{"policyName":"static","defaultCpuSet":"0-3","entries":{"u":{"c":"4-5"}}}`,
			want: `static policy: the CPUs that are online are "0-7", those of the file "0-5"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := configOf(t, laptop)
			if test.on != "" {
				cfg = configOf(t, laptop, test.on)
			}
			if err := os.WriteFile(cfg.StateFile, []byte(test.file), 0o600); err != nil {
				t.Fatal(err)
			}
			m, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			wantError(t, m.Load(), test.want+strings.ReplaceAll(fix, "PATH", cfg.StateFile))
			wantFile(t, m, test.file) // it is left for somebody to look at
		})
	}
}

func TestLoadAccepts(t *testing.T) {
	for name, test := range map[string]struct {
		file, on, shared, owned string
	}{
		"no file":                    {shared: "0-7"},
		"no file, strict":            {on: strictReservation, shared: "1-7"},
		"nothing in it":              {file: `{"policyName":"static","defaultCpuSet":""}`, shared: "0-7"},
		"checksum 0":                 {file: `{"policyName":"static","defaultCpuSet":"0-5","entries":{"u":{"c":"6-7"}},"checksum":0}`, shared: "0-5", owned: "6-7"},
		"init containers' CPUs":      {file: `{"policyName":"static","defaultCpuSet":"0-5","entries":{"u":{"c":"6-7","i":"6"}}}`, shared: "0-5", owned: "6-7"},
		"strict, everything is gone": {file: `{"policyName":"static","defaultCpuSet":"","entries":{"u":{"c":"1-7"}}}`, on: strictReservation, owned: "1-7"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := configOf(t, laptop)
			if test.on != "" {
				cfg = configOf(t, laptop, test.on)
			}
			if test.file != "" {
				if err := os.WriteFile(cfg.StateFile, []byte(test.file), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			p := load(t, cfg).store.current()
			if p.shared.String() != test.shared || p.exclusive().String() != test.owned {
				t.Errorf("shared %s, exclusive %s; want %s, %s", p.shared, p.exclusive(), test.shared, test.owned)
			}
			if p := load(t, cfg).store.current(); p.shared.String() != test.shared {
				t.Errorf("the second time shared %s", p.shared)
			}
		})
	}
}

// Nobody gets CPUs that the file does not have; what is given back is free all the same.
func TestDiskFull(t *testing.T) {
	cfg := configOf(t, laptop)
	m := load(t, cfg)
	mustAdmit(t, m, podOf("a", ask{"c", "2", ""}), "c=2-3")
	before, err := os.ReadFile(cfg.StateFile)
	if err != nil {
		t.Fatal(err)
	}
	mend := checkpointtest.ReadOnly(t, strings.TrimSuffix(cfg.StateFile, "/cpu_manager_state"))
	b := podOf("b", ask{"c", "2", ""})
	err = m.Allocate(b, &b.Spec.Containers[0], topologymanager.Hint{})
	want := "write " + cfg.StateFile + ": read-only file system; make its file system writable"
	wantError(t, err, want)
	wantError(t, m.Persistence(), want)
	if ownsAny(m, "b") {
		t.Error("the pod has CPUs that the file does not have")
	}
	m.Release("a")
	if got := m.store.current().shared.String(); got != "0-7" {
		t.Errorf("shared %s", got)
	}
	wantFile(t, m, string(before))
	mend()
	if err := m.store.rewrite(); err != nil {
		t.Error(err)
	}
	wantFile(t, m, string(must(encode(Static, m.store.current()))))
	if err := m.Persistence(); err != nil {
		t.Error(err)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

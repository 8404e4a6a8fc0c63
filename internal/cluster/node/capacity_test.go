package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
)

func TestReservation(t *testing.T) {
	capacity := quantities("cpu", "4", "memory", "8Gi", "pods", "110", "ephemeral-storage", "100Gi", "hugepages-2Mi", "2Gi", "hugepages-1Gi", "1Gi")
	type m = map[string]string
	tests := map[string]struct {
		kube, system, hard m
		cpus               string
		want               v1.ResourceList // where it differs from the capacity
	}{
		"nothing reserved: huge pages are not memory": {want: quantities("memory", "5Gi")},
		"the sum of both": {
			kube: m{"cpu": "500m", "memory": "1Gi", "ephemeral-storage": "1Gi"}, system: m{"cpu": "250m", "memory": "512Mi", "pid": "1000"},
			want: quantities("cpu", "3250m", "memory", "3584Mi", "ephemeral-storage", "99Gi"),
		},
		"reservedSystemCPUs overrides": {kube: m{"cpu": "3"}, system: m{"cpu": "3"}, cpus: "0,2-3", want: quantities("cpu", "1", "memory", "5Gi")},
		"thresholds": {
			hard: m{"memory.available": "100Mi", "nodefs.available": "10%", "imagefs.available": "50%", "nodefs.inodesFree": "5%"},
			want: quantities("memory", "5020Mi", "ephemeral-storage", "90Gi"),
		},
		"thresholds that are off": {hard: m{"memory.available": "0%", "nodefs.available": "100%"}, want: quantities("memory", "5Gi")},
		"more than there is":      {kube: m{"cpu": "5", "memory": "100Gi"}, want: quantities("cpu", "0", "memory", "0")},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r, err := NewReservation(tt.kube, tt.system, tt.hard, tt.cpus)
			if err != nil {
				t.Fatal(err)
			}
			want := capacity.DeepCopy()
			for name, q := range tt.want {
				want[name] = q
			}
			// A part is computed in 32 bits, as the kubelet does, and so it is near the amount
			// rather than equal to it.
			got := computeAllocatable(r, capacity)
			if q := got[v1.ResourceEphemeralStorage]; tt.hard != nil {
				w := want[v1.ResourceEphemeralStorage]
				if d := q.Value() - w.Value(); d > -1<<10 && d < 1<<10 {
					got[v1.ResourceEphemeralStorage] = w
				}
			}
			if diff := cmp.Diff(want, got, equalQuantities); diff != "" {
				t.Errorf("allocatable (-want +got):\n%s", diff)
			}
		})
	}
}

// The example of the Kubernetes documentation, "Reserve Compute Resources for System Daemons".
func TestPublishedReservation(t *testing.T) {
	type m = map[string]string
	r, err := NewReservation(
		m{"cpu": "1", "memory": "2Gi", "ephemeral-storage": "1Gi"}, m{"cpu": "500m", "memory": "1Gi", "ephemeral-storage": "1Gi"},
		m{"memory.available": "500Mi", "nodefs.available": "10%"}, "")
	if err != nil {
		t.Fatal(err)
	}
	machine := Machine{CPUs: 16, Memory: 32 << 30, Storage: 100 << 30}
	capacity, allocatable := Resources(&Settings{MaxPods: 110, LocalStorageCapacityIsolation: true, Reservation: r}, &machine)
	storage := allocatable[v1.ResourceEphemeralStorage]
	if gi := float64(storage.Value()) / (1 << 30); gi < 87.999 || gi > 88.001 {
		t.Errorf("allocatable storage = %v GiB, want 88", gi)
	}
	delete(allocatable, v1.ResourceEphemeralStorage)
	if diff := cmp.Diff(quantities("cpu", "14500m", "memory", "29196Mi", "pods", "110"), allocatable, equalQuantities); diff != "" {
		t.Errorf("allocatable (-want +got):\n%s", diff)
	}
	// Pods are held to what is reserved; the threshold is what they are evicted by.
	want := quantities("cpu", "14500m", "memory", "29Gi", "pods", "110", "ephemeral-storage", "98Gi")
	if diff := cmp.Diff(want, r.Enforced(capacity), equalQuantities); diff != "" {
		t.Errorf("enforced (-want +got):\n%s", diff)
	}
}

func TestNewReservationErrors(t *testing.T) {
	type m = map[string]string
	tests := map[string]struct {
		kube, system, hard m
		cpus               string
	}{
		"kubeReserved: cpu":                   {kube: m{"cpu": "lots"}},
		"systemReserved: memory":              {system: m{"memory": "-1Gi"}},
		"evictionHard: memory.available":      {hard: m{"memory.available": "x"}},
		"evictionHard: nodefs.available":      {hard: m{"nodefs.available": "101%"}},
		`evictionHard: nodefs.available: "a%`: {hard: m{"nodefs.available": "a%"}},
		"reservedSystemCPUs":                  {cpus: "3-1"},
	}
	for want, tt := range tests {
		t.Run(want, func(t *testing.T) {
			if _, err := NewReservation(tt.kube, tt.system, tt.hard, tt.cpus); err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("error = %v, want it to begin with %q", err, want)
			}
		})
	}
}

func TestComputeCapacity(t *testing.T) {
	whole := Machine{CPUs: 2, Memory: 4 << 30, Storage: 10 << 30, HugePages: map[int64]int64{2 << 20: 4 << 20, 1 << 30: 0}}
	tests := map[string]struct {
		settings Settings
		machine  Machine
		want     v1.ResourceList
	}{
		"all": {
			Settings{MaxPods: 110, LocalStorageCapacityIsolation: true},
			whole,
			quantities("cpu", "2", "memory", "4Gi", "pods", "110", "ephemeral-storage", "10Gi", "hugepages-2Mi", "4Mi", "hugepages-1Gi", "0"),
		},
		"pods per core":             {Settings{MaxPods: 110, PodsPerCore: 10}, Machine{CPUs: 2}, quantities("cpu", "2", "pods", "20")},
		"pods per core, but capped": {Settings{MaxPods: 15, PodsPerCore: 10}, Machine{CPUs: 2}, quantities("cpu", "2", "pods", "15")},
		"nothing known":             {Settings{MaxPods: 110, LocalStorageCapacityIsolation: true}, Machine{}, quantities("pods", "110")},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, computeCapacity(&tt.settings, &tt.machine), equalQuantities); diff != "" {
				t.Errorf("capacity (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCountCPUs(t *testing.T) {
	for list, want := range map[string]int{"0": 1, "0-1\n": 2, "0-3,8,10-11": 7, "0-2,1-3": 4, "": 0, "a": 0, "1-0": 0, "1,": 0, "-1": 0} {
		got, err := countCPUs(list)
		if got != want || (err == nil) != (want > 0) {
			t.Errorf("countCPUs(%q) = %d, %v, want %d", list, got, err, want)
		}
	}
}

func TestMachine(t *testing.T) {
	files := map[string]string{
		"/sys/devices/system/cpu/online": "0-3\n",
		"/proc/meminfo":                  "MemTotal:       24684084 kB\nMemFree: 1 kB\nHugePages_Total:       0\nSwapTotal:        1024 kB\n",

		"/proc/sys/kernel/pid_max":     "4194304\n",
		"/proc/sys/kernel/threads-max": "192000\n",

		"/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages":    "3\n",
		"/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages": "0\n",
		"/proc/sys/kernel/osrelease":                                "6.1.0-1-amd64\n",
		"/proc/sys/kernel/random/boot_id":                           "06311eb1\n",
		"/etc/machine-id":                                           "3d1219c7\n",
		"/sys/class/dmi/id/product_uuid":                            "ABCD\n",
		"/etc/os-release":                                           "NAME=\"Debian\"\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n",
	}
	whole := Machine{
		CPUs: 4, Memory: 24684084 << 10, Swap: 1 << 20, PIDs: 192000, HugePages: map[int64]int64{2 << 20: 6 << 20, 1 << 30: 0},
		MachineID: "3d1219c7", SystemUUID: "ABCD", BootID: "06311eb1", Kernel: "6.1.0-1-amd64", OSImage: "Debian GNU/Linux 12 (bookworm)",
	}
	tests := map[string]struct {
		change map[string]string // "" removes the file
		want   func(*Machine)
		err    string // part of the error; "" if there is none
	}{
		"whole":                 {nil, func(*Machine) {}, ""},
		"no DMI":                {map[string]string{"/sys/class/dmi/id/product_uuid": ""}, func(m *Machine) { m.SystemUUID = "3d1219c7" }, ""},
		"device tree":           {map[string]string{"/sys/class/dmi/id/product_uuid": "", "/proc/device-tree/vm,uuid": "tree\x00"}, func(m *Machine) { m.SystemUUID = "tree" }, ""},
		"machine id of D-Bus":   {map[string]string{"/etc/machine-id": "", "/var/lib/dbus/machine-id": "dbus"}, func(m *Machine) { m.MachineID = "dbus" }, ""},
		"other os-release":      {map[string]string{"/etc/os-release": "", "/usr/lib/os-release": "PRETTY_NAME='Alpine'"}, func(m *Machine) { m.OSImage = "Alpine" }, ""},
		"no os-release":         {map[string]string{"/etc/os-release": ""}, func(m *Machine) { m.OSImage = "Linux" }, ""},
		"no CPU list":           {map[string]string{"/sys/devices/system/cpu/online": ""}, func(m *Machine) { m.CPUs = 0 }, "CPUs: "},
		"no memory":             {map[string]string{"/proc/meminfo": "SwapTotal: 1 kB\n"}, func(m *Machine) { m.Memory, m.Swap = 0, 0 }, "memory: /proc/meminfo has no MemTotal"},
		"memory is no number":   {map[string]string{"/proc/meminfo": "MemTotal: x kB\n"}, func(m *Machine) { m.Memory, m.Swap = 0, 0 }, "memory: "},
		"pages are no number":   {map[string]string{"/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "x"}, func(m *Machine) { m.HugePages = nil }, "huge pages: hugepages-2048kB: "},
		"few process ids":       {map[string]string{"/proc/sys/kernel/pid_max": "32768"}, func(m *Machine) { m.PIDs = 32768 }, ""},
		"no process ids":        {map[string]string{"/proc/sys/kernel/pid_max": ""}, func(m *Machine) { m.PIDs = 0 }, "process ids: "},
		"unknown pages ignored": {map[string]string{"/sys/kernel/mm/hugepages/other/nr_hugepages": "1"}, func(*Machine) {}, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			write := func(set map[string]string) {
				for file, text := range set {
					path := filepath.Join(root, file)
					if text == "" {
						if err := os.Remove(path); err != nil {
							t.Fatal(err)
						}
						continue
					}
					if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			write(files)
			write(tt.change)
			want := whole
			tt.want(&want)
			got, err := Host{Root: root, Dir: root}.Read()
			if got.Storage <= 0 {
				t.Errorf("storage = %d, want the size of the file system of the test", got.Storage)
			}
			got.Storage = 0
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("machine (-want +got):\n%s", diff)
			}
			if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Errorf("error = %v, want %q in it", err, tt.err)
			}
		})
	}
}

// Whatever machine this is, it has CPUs, memory and a kernel.
func TestThisMachine(t *testing.T) {
	m, err := Host{Root: "/", Dir: t.TempDir()}.Read()
	if err != nil || m.CPUs < 1 || m.Memory < 1<<20 || m.Storage < 1 || m.Kernel == "" || m.BootID == "" || m.OSImage == "" {
		t.Errorf("machine = %+v, %v", m, err)
	}
}

func TestStoredLabels(t *testing.T) {
	file := filepath.Join(t.TempDir(), "labels")
	tests := map[string]struct {
		text string // "" is no file
		want map[string]string
		err  string
	}{
		"no file":         {"", nil, ""},
		"ours":            {`{"version":1,"node":"n1","labels":{"a":"b"}}`, map[string]string{"a": "b"}, ""},
		"another node's":  {`{"version":1,"node":"n2","labels":{"a":"b"}}`, nil, ""},
		"unknown version": {`{"version":2,"node":"n1"}`, nil, "version 2 is not known"},
		"garbage":         {`{"vers`, nil, file},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if tt.text != "" {
				if err := os.WriteFile(file, []byte(tt.text), 0o600); err != nil {
					t.Fatal(err)
				}
				defer func() { _ = os.Remove(file) }()
			}
			got, err := readLabels(file, "n1")
			if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Errorf("error = %v, want %q in it", err, tt.err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("labels (-want +got):\n%s", diff)
			}
		})
	}
	if err := writeLabels(filepath.Join(t.TempDir(), "missing", "labels"), "n1", nil); err == nil {
		t.Error("writing to a folder that is missing gave no error")
	}
}

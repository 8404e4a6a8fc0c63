package stats

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/procfs/blockdevice"
)

// Each device is told once, by a mount that is to be seen, and without those that a process may
// keep anybody waiting for.
func TestReadDisks(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "self"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"self/mountinfo": "1 0 254:1 / / rw - ext4 /dev/vda1 rw\n2 1 0:20 / /proc rw - proc proc rw\n3 1 254:1 /x /tmp rw - ext4 /dev/vda1 rw\n" +
			"4 1 254:2 / /dev rw - xfs /dev/vda2 rw\n5 1 0:21 / /dev rw - tmpfs tmpfs rw\n6 1 254:2 / /usr rw - xfs /dev/vda2 rw\n" +
			"7 1 254:3 / /etc rw - fuseblk /dev/vda3 rw\n8 1 254:4 / /not/there rw - ext4 /dev/vda4 rw\n",
		"diskstats": " 254 0 vda 1 2 3 4 5 6 7 8 9 10 11\n 254 1 vda1 11 12 13 14 15 16 17 18 19 20 21 0 0 0 0 0 0\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := ReadDisks(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range got {
		if d.Capacity == 0 || d.Free > d.Capacity || d.InodesFree > d.Inodes {
			t.Errorf("sizes %+v", d)
		}
	}
	want := []Disk{
		{Device: "/dev/vda1", Major: 254, Minor: 1, IO: &blockdevice.IOStats{
			ReadIOs: 11, ReadMerges: 12, ReadSectors: 13, ReadTicks: 14, WriteIOs: 15, WriteMerges: 16, WriteSectors: 17, WriteTicks: 18,
			IOsInProgress: 19, IOsTotalTicks: 20, WeightedIOTicks: 21,
		}},
		{Device: "/dev/vda2", Major: 254, Minor: 2},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Disk{}, "Capacity", "Free", "Inodes", "InodesFree")); diff != "" {
		t.Errorf("disks (-want +got):\n%s", diff)
	}
}

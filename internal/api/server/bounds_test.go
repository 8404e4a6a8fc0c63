package server

import "testing"

func TestComputeShare(t *testing.T) {
	for _, c := range []struct {
		n     int
		files uint64
		want  int
	}{
		{1024, 0, 1024},
		{1024, 1 << 62, 1024},
		{1024, manyFiles, 1024},
		{1024, manyFiles - 1, 1023},
		{1024, 1024, 128},
		{1024, 64, minConnections},
		{0, 1024, 0},
	} {
		if got := computeShare(c.n, c.files); got != c.want {
			t.Errorf("%d of %d files: got %d, want %d", c.n, c.files, got, c.want)
		}
	}
}

// All that clients can have open leaves the agent more than half of its files, however many those
// are.
func TestClientsLeaveFiles(t *testing.T) {
	for _, files := range []uint64{1024, 4096, manyFiles, 20000} {
		open := computeShare(maxForwarded, files)
		for _, l := range []limits{localLimits, secureLimits, readOnlyLimits, readOnlyLimits} {
			admitted := computeShare(l.admitted, files)
			open += admitted + computeShare(l.unadmitted, files)
			open += min(admitted, l.streams) // what each is joined to
		}
		if uint64(2*open) > files {
			t.Errorf("of %d files clients can have %d", files, open)
		}
	}
}

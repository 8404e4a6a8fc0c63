package cgroups

import (
	"os"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPair(t *testing.T) {
	for _, c := range []struct {
		name     string
		from, to map[string]string
		want     []move
	}{
		{
			name: "version 1, with two controllers in one hierarchy, and systemd's two",
			from: map[string]string{"cpu": "/c/cpu,cpuacct", "cpuacct": "/c/cpu,cpuacct", "memory": "/c/memory", "name=systemd": "/c/systemd", "": "/c/unified"},
			to:   map[string]string{"cpu": "/c/cpu,cpuacct/s", "cpuacct": "/c/cpu,cpuacct/s", "memory": "/c/memory/s", "name=systemd": "/c/systemd/s", "": "/c/unified/s"},
			want: []move{{"/c/cpu,cpuacct", "/c/cpu,cpuacct/s"}, {"/c/memory", "/c/memory/s"}},
		},
		{name: "version 2", from: map[string]string{"": "/c"}, to: map[string]string{"": "/c/s"}, want: []move{{"/c", "/c/s"}}},
		{name: "a controller that is not mounted", from: map[string]string{"rdma": ""}, to: map[string]string{"rdma": ""}},
	} {
		if diff := cmp.Diff(c.want, pair(c.from, c.to), cmp.AllowUnexported(move{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestInAll(t *testing.T) {
	for _, c := range []struct {
		lists [][]int
		want  []int
	}{
		{nil, nil},
		{[][]int{{3, 1, 2}}, []int{1, 2, 3}},
		{[][]int{{3, 1, 2}, {2, 4, 3}}, []int{2, 3}},
		{[][]int{{3, 1}, {2}}, nil},
	} {
		if diff := cmp.Diff(c.want, inAll(c.lists)); diff != "" {
			t.Errorf("%v (-want +got):\n%s", c.lists, diff)
		}
	}
}

func TestIsDaemon(t *testing.T) {
	own, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, stat string
		pid        int
		want       bool
	}{
		{name: "this test", pid: os.Getpid(), stat: string(own), want: true},
		{name: "the first process", pid: 1, stat: "1 (systemd) S 0 1 1 0 -1 4194560 1", want: false},
		{name: "one of another namespace", pid: 0, stat: "", want: false},
		{name: "a thread of the kernel", pid: 2, stat: "2 (kthreadd) S 0 0 0 0 -1 2129984 0", want: false},
		{name: "a daemon", pid: 700, stat: "700 (sshd) S 1 700 700 0 -1 4194560 1", want: true},
		{name: "an odd name", pid: 700, stat: "700 (a) b ( c) S 1 700 700 0 -1 4194560 1", want: true},
		{name: "one that has ended", pid: 700, stat: "700 (sshd) Z 1 700 700 0 -1 4194560 1", want: false},
		{name: "what cannot be read", pid: 700, stat: "700 (sshd", want: false},
	} {
		if got := isDaemon(c.pid, c.stat); got != c.want {
			t.Errorf("%s (%s): got %v", c.name, strconv.Itoa(c.pid), got)
		}
	}
}

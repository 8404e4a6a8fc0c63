package oom

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	id1 = "4c0ab0ef5f7b1a4b4c0ab0ef5f7b1a4b4c0ab0ef5f7b1a4b4c0ab0ef5f7b1a4b"
	id2 = "1111111111111111111111111111111111111111111111111111111111111111"
)

func TestParser(t *testing.T) {
	tests := []struct {
		name, log string
		want      []kill
	}{
		{
			name: "Linux 6.18, limit of a container",
			log: `tail invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0
CPU: 1 UID: 0 PID: 25167 Comm: tail Not tainted 6.18.44 #1 PREEMPT(lazy)
memory: usage 16384kB, limit 16384kB, failcnt 78
memory+swap: usage 16384kB, limit 9007199254740988kB, failcnt 0
Memory cgroup stats for /kubepods/pod1/` + id1 + `:
oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/kubepods/pod1/` + id1 + `,task_memcg=/kubepods/pod1/` + id1 + `,task=tail,pid=25167,uid=0
Memory cgroup out of memory: Killed process 25167 (tail) total-vm:18940kB, anon-rss:16000kB, file-rss:1576kB, shmem-rss:0kB, UID:0 pgtables:80kB oom_score_adj:0`,
			want: []kill{{process: "tail", pid: 25167, task: "/kubepods/pod1/" + id1, limit: "/kubepods/pod1/" + id1, used: 16 << 20, allowed: 16 << 20}},
		},
		{
			name: "the node",
			log: `stress invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), order=0, oom_score_adj=1000
oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/kubepods/besteffort/pod2/` + id2 + `,task=stress,pid=7,uid=1000
Out of memory: Killed process 7 (stress) total-vm:1kB`,
			want: []kill{{process: "stress", pid: 7, task: "/kubepods/besteffort/pod2/" + id2}},
		},
		{
			name: "Linux 4.19",
			log: `java invoked oom-killer: gfp_mask=0x6000c0(GFP_KERNEL), nodemask=(null), order=0, oom_score_adj=999
Task in /kubepods/burstable/pod1/` + id1 + ` killed as a result of limit of /kubepods/burstable/pod1
memory: usage 204800kB, limit 204800kB, failcnt 5
Memory cgroup out of memory: Kill process 1234 (java) score 1999 or sacrifice child
Killed process 1234 (java) total-vm:2kB, anon-rss:1kB`,
			want: []kill{{
				process: "java", pid: 1234, task: "/kubepods/burstable/pod1/" + id1, limit: "/kubepods/burstable/pod1", used: 200 << 20, allowed: 200 << 20,
			}},
		},
		{
			name: "a process that calls itself something",
			log: `x invoked oom-killer: gfp_mask=0
oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/a,task_memcg=/a,task=x,pid=1,uid=0,pid=99,uid=0`,
			want: []kill{{process: "x,pid=1,uid=0", pid: 99, task: "/a", limit: "/a"}},
		},
		{
			name: "a kill without its beginning, which was overwritten",
			log:  "oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/a,task_memcg=/a,task=x,pid=1,uid=0",
		},
		{
			name: "cut short",
			log:  "x invoked oom-killer: gfp_mask=0\noom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/a\nx invoked oom-killer: y\noom-kill:,task_memcg=/a,task=x,pid=z",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var p parser
			var got []kill
			for line := range strings.SplitSeq(tt.log, "\n") {
				if k, ok := p.line(line); ok {
					got = append(got, k)
				}
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(kill{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParseRecord(t *testing.T) {
	tests := []struct {
		in   string
		want Record
		ok   bool
	}{
		{"6,78229,22231321069,-;veth8b (unregistering): left promiscuous mode\n SUBSYSTEM=net\n DEVICE=n3\n", Record{78229, "veth8b (unregistering): left promiscuous mode"}, true},
		{"3,5,1,c,caller=T1;x invoked oom-killer: y\n", Record{5, "x invoked oom-killer: y"}, true},
		{"12,6,1,-;x invoked oom-killer: written by a program\n", Record{Seq: 6}, true},
		{"rubbish", Record{}, false},
		{"6,x,1,-;rubbish", Record{}, false},
	}
	for _, tt := range tests {
		if got, ok := parseRecord([]byte(tt.in)); got != tt.want || ok != tt.ok {
			t.Errorf("parseRecord(%q) = %+v, %v, want %+v, %v", tt.in, got, ok, tt.want, tt.ok)
		}
	}
}

func FuzzParser(f *testing.F) {
	f.Add("x invoked oom-killer: y\nmemory: usage 1kB, limit 2kB, failcnt 0\noom-kill:,oom_memcg=/a,task_memcg=/a,task=x,pid=1,uid=0")
	f.Add("x invoked oom-killer: y\nTask in /a killed as a result of limit of /b\nKilled process 1 (x) total")
	f.Fuzz(func(t *testing.T, log string) {
		var p parser
		for line := range strings.SplitSeq(log, "\n") {
			if k, ok := p.line(line); ok && !strings.Contains(log, k.process) {
				t.Errorf("%q has no process %q", log, k.process)
			}
		}
	})
}

package agenttest

import (
	"context"
	"fmt"

	"berth/internal/observe/oom"
)

// kernel is a kernel whose log reports the OOM kills of scenarios. Its counters stay zero.
type kernel struct{ log chan oom.Record }

func newKernel() kernel { return kernel{make(chan oom.Record, 10)} }

func (kernel) Boot() string { return "" }

func (k kernel) Log(ctx context.Context, _ uint64, _ <-chan struct{}, put func(oom.Record)) error {
	for {
		select {
		case r := <-k.log:
			put(r)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (kernel) Watch(func(string)) (oom.Watch, error)         { return quietWatch{}, nil }
func (kernel) Containers(string) (map[string]string, error)  { return nil, nil }
func (kernel) Kills(string) (uint64, error)                  { return 0, nil }
func (kernel) Memory(string) (peak, limit uint64, err error) { return 0, 0, nil }

// kill logs an OOM kill of a process of the container at the limit in kilobytes.
func (k kernel) kill(container, process string, limit int64) {
	cgroup := "/kubepods/pod1/" + container
	for i, text := range []string{
		process + " invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
		fmt.Sprintf("memory: usage %dkB, limit %dkB, failcnt 78", limit, limit),
		fmt.Sprintf("oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=%s,task_memcg=%s,task=%s,pid=4711,uid=0", cgroup, cgroup, process),
	} {
		k.log <- oom.Record{Seq: uint64(i + 1), Text: text}
	}
}

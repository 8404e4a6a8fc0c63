package kuberuntime

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/record/events/messagestest"
)

// planCase is one row: the pod, what is observed of it (see specOf and inputOf), and the plan's
// line.
type planCase struct{ name, spec, observed, want string }

func checkPlans(t *testing.T, cases []planCase) {
	t.Helper()
	seen := map[string]bool{}
	for _, tc := range cases {
		if seen[tc.name] {
			t.Errorf("two rows are named %q", tc.name)
		}
		seen[tc.name] = true
		t.Run(tc.name, func(t *testing.T) {
			in := inputOf(t, specOf(t, tc.spec), tc.observed)
			a := computePodActions(in)
			for _, k := range a.Kill {
				messagestest.SawEvent("Killing", k.Message) // of which its execution makes the event
			}
			if got := a.String(); got != tc.want {
				t.Errorf("pod %s\nobserved %s\ngot  %s\nwant %s", tc.spec, tc.observed, got, tc.want)
			}
			if diff := cmp.Diff(a, computePodActions(in)); diff != "" {
				t.Errorf("the same values give another plan:\n%s", diff)
			}
		})
	}
}

func TestPlanSandbox(t *testing.T) {
	const fresh = "create sandbox 0, start a (new sandbox)"
	const again = "stop the pod, create sandbox 1, start a (new sandbox)"
	checkPlans(t, []planCase{
		{"new pod", "Always a", "", fresh},
		{"new pod with two containers", "Always a b", "", "create sandbox 0, start a (new sandbox), start b (new sandbox)"},
		{"new pod with init containers", "Always i:1 i:2 a", "", "create sandbox 0, start 1 (first init container)"},
		{"new pod with a sidecar first", "Always s:1 i:2 a", "", "create sandbox 0, start 1 (first init container)"},
		{"new pod with an ephemeral container", "Always e:d a", "", fresh},
		{"new pod that is being deleted", "Always deleted a", "", "nothing to do"},
		{"running pod that is being deleted", "Always deleted a", "sb a=1", "nothing to do"},
		{"Never does not keep the first sandbox away", "Never a", "", fresh},
		{"sandbox died", "Always a", "sb-dead a=137", again},
		{"sandbox died, container still runs", "Always a", "sb-dead a=running", again},
		{"sandbox died before any container", "Always a", "sb-dead", again},
		{"sandbox died before any container, Never", "Never a", "sb-dead", again},
		{"third sandbox", "Always a", "sb-dead sb-dead a=1", "stop the pod, create sandbox 2, start a (new sandbox)"},
		{"two ready sandboxes", "Always a", "sb sb a=running", "stop the pod, create sandbox 2, start a (new sandbox)"},
		{"the newest is dead, an older one ready", "Always a", "sb-dead sb a=running+old", "stop the pod, create sandbox 2, start a (new sandbox)"},
		{"pod moves to the host's network", "Always host a", "sb a=running", again},
		{"pod leaves the host's network", "Always a", "sb-host a=running", again},
		{"host network has no address", "Always host a", "sb-host a=running", "nothing to do"},
		{"sandbox has no address", "Always a", "sb-noip a=running", again},
		{"sandbox died, Never", "Never a", "sb-dead a=1", "nothing to do"},
		{"sandbox died, Never, a container still runs", "Never a b", "sb-dead a=1 b=running", "stop the pod"},
		{"sandbox died, Never, one container never ran", "Never a b", "sb-dead a=0", "nothing to do"},
		{"sandbox died, Never, init was done", "Never i:1 a", "sb-dead 1=0", "stop the pod, create sandbox 1, start 1 (first init container)"},
		{"sandbox died, Never, only the sidecar ran", "Never s:1 a", "sb-dead 1=137", "stop the pod, create sandbox 1, start 1 (first init container)"},
		{"sandbox died, Never, a container was created", "Never a", "sb-dead a=created", again},
		{"sandbox died, Never, a container is unknown", "Never a", "sb-dead a=unknown", "nothing to do"},
		{"sandbox died, Never, a container has Always of its own", "Never a b!Always", "sb-dead a=0 b=137", "stop the pod, create sandbox 1, start b (new sandbox)"},
		{"sandbox died, Never, a rule restarts it", "Never a!Never{Restart/In/137}", "sb-dead a=137", again},
		{"sandbox died, OnFailure, succeeded", "OnFailure a", "sb-dead a=0", "nothing to do"},
		{"sandbox died, OnFailure, one succeeded", "OnFailure a b", "sb-dead a=0 b=1", "stop the pod, create sandbox 1, start b (new sandbox)"},
		{"sandbox died, own OnFailure, succeeded", "Always a!OnFailure b", "sb-dead a=0 b=0", "stop the pod, create sandbox 1, start b (new sandbox)"},
		{"sandbox died, own Never, ended", "Always a!Never b", "sb-dead a=1 b=1", "stop the pod, create sandbox 1, start b (new sandbox)"},
		{"sandbox died, init runs again", "Always i:1 a", "sb-dead 1=0 a=1", "stop the pod, create sandbox 1, start 1 (first init container)"},
		{"sandbox died while init ran", "OnFailure i:1 a", "sb-dead 1=running", "stop the pod, create sandbox 1, start 1 (first init container)"},
		{"sandbox died, restart is held back", "Always a b", "sb-dead a=137+held b=137", "stop the pod, create sandbox 1, start b (new sandbox), start a (new sandbox) at 03:04:25, when its back-off of 20s has ended"},
		{"new pod, the last try failed", "Always a", "failed", "create sandbox 0 not before 03:04:15, as the last try has failed"},
		{"sandbox died, the last try failed", "Always a", "failed sb-dead a=137", "create sandbox 1 not before 03:04:15, as the last try has failed"},
		{"sandbox died, the last try failed, a container still runs", "Always a", "failed sb-dead a=running", "stop the pod, create sandbox 1 not before 03:04:15, as the last try has failed"},
		{"the last try failed, and the pod is over", "Never a", "failed sb-dead a=1", "nothing to do"},
		{"the last try failed, and was made after all", "Always a", "failed sb a=running", "nothing to do"},
		{"an old exit does not restart all", "Never i:1 a!Never{RestartAllContainers/In/42}", "sb sb-dead a=42+old 1=running", "nothing to do"},
	})
}

func TestPlanInit(t *testing.T) {
	checkPlans(t, []planCase{
		{"nothing yet", "Always i:1 i:2 a", "sb", "start 1 (first init container)"},
		{"first runs", "Always i:1 i:2 a", "sb 1=running", "nothing to do"},
		{"first runs, changed", "Always i:1 i:2 a", "sb 1=running+changed", "nothing to do"},
		{"first is done", "Always i:1 i:2 a", "sb 1=0", "start 2 (init container 1 is done)"},
		{"second runs", "Always i:1 i:2 a", "sb 2=running 1=0", "nothing to do"},
		{"second runs, first is cleaned away", "Always i:1 i:2 a", "sb 2=running", "nothing to do"},
		{"last is done", "Always i:1 i:2 a b", "sb 2=0 1=0", "start a (it has no container), start b (it has no container)"},
		{"last is done, first is cleaned away", "Always i:1 i:2 a", "sb 2=0", "start a (it has no container)"},
		{"created, not started", "Always i:1 a", "sb 1=created", "start 1 (its container is created)"},
		{"failed, Always", "Always i:1 a", "sb 1=1", "start 1 (it exited with code 1)"},
		{"failed, OnFailure", "OnFailure i:1 a", "sb 1=1", "start 1 (it exited with code 1)"},
		{"failed, Never", "Never i:1 a", "sb 1=1", "stop the pod"},
		{"failed, own Never", "Always i:1!Never a", "sb 1=1", "stop the pod"},
		{"failed, own OnFailure over Never", "Never i:1!OnFailure a", "sb 1=1", "start 1 (it exited with code 1)"},
		{"failed, Never, a rule restarts it", "Never i:1!Never{Restart/In/3} a", "sb 1=3", "start 1 (it exited with code 3)"},
		{"failed, Never, the rule is for other codes", "Never i:1!Never{Restart/In/3} a", "sb 1=4", "stop the pod"},
		{"code 0 but out of memory, Always", "Always i:1 a", "sb 1=0+oom", "start 1 (it exited with code 0, OOMKilled)"},
		{"code 0 but out of memory, Never", "Never i:1 a", "sb 1=0+oom", "stop the pod"},
		{"unknown, Always", "Always i:1 a", "sb 1=unknown", "stop 1 (Init container 1 is in an unknown state, will be restarted), start 1 (its container is unknown)"},
		{"unknown, Never", "Never i:1 a", "sb 1=unknown", "stop the pod"},
		{"not created", "Always i:1 a", "sb failed:1", "start 1 (first init container) not before 03:04:15, as the last try has failed"},
		{"a sidecar that was not created lets nothing pass", "Always s:1 a", "sb failed:1", "start 1 (first init container) not before 03:04:15, as the last try has failed"},
		{"one of two not created", "Always a b", "sb failed:a", "start b (it has no container), start a (it has no container) not before 03:04:15, as the last try has failed"},
		{"crashed, then not created", "Always a", "sb a=1+held failed:a", "start a (it exited with code 1) at 03:04:25, when its back-off of 20s has ended"},
		{"held back", "Always i:1 a", "sb 1=1+held", "start 1 (it exited with code 1) at 03:04:25, when its back-off of 20s has ended"},
		{"initialized: failed ones do not matter", "Always i:1 a", "sb a=running 1=1", "nothing to do"},
		{"initialized: missing ones do not matter", "Always i:1 a", "sb a=running", "nothing to do"},
		{"initialized: exited in this sandbox", "Always i:1 a", "sb a=1", "start a (it exited with code 1)"},
		{"a container of the old sandbox is no sign", "Always i:1 a", "sb sb-dead a=1+old", "start 1 (first init container)"},
	})
}

func TestPlanSidecars(t *testing.T) {
	checkPlans(t, []planCase{
		{"next starts at once without a startup probe", "Always s:1 i:2 a", "sb 1=running", "start 2 (sidecar 1 has started)"},
		{"the next may be a sidecar too", "Always s:1 s:2 a", "sb 1=running", "start 2 (sidecar 1 has started)"},
		{"last one, pod is initialized", "Always s:1 a", "sb 1=running", "start a (it has no container)"},
		{"startup not known", "Always s:1? i:2 a", "sb 1=running", "nothing to do"},
		{"startup succeeded", "Always s:1? i:2 a", "sb 1=running+started", "start 2 (sidecar 1 has started)"},
		{"startup succeeded, last one", "Always i:1 s:2? a", "sb 2=running+started 1=0", "start a (it has no container)"},
		{"startup failed", "Always s:1? i:2 a", "sb 1=running+stuck", "stop 1 (Init container 1 failed startup probe), start 1 (its startup probe failed)"},
		{"startup failed, Never", "Never s:1? a", "sb 1=running+stuck", "stop 1 (Init container 1 failed startup probe), start 1 (its startup probe failed)"},
		{"liveness failed", "Always s:1? a", "sb 1=running+started+dead a=running", "stop 1 (Init container 1 failed liveness probe), start 1 (its liveness probe failed)"},
		{"liveness failed while the next is due", "Always s:1? i:2 a", "sb 1=running+started+dead", "stop 1 (Init container 1 failed liveness probe), start 1 (its liveness probe failed), start 2 (sidecar 1 has started)"},
		{"definition changed", "Always s:1 a", "sb 1=running+changed a=running", "stop 1 (Init container 1 definition changed), start 1 (definition changed)"},
		{"not yet known startup of a running pod", "Always s:1? a", "sb 1=running a=running", "nothing to do"},
		{"died while the pod runs", "Always s:1 a", "sb 1=1 a=running", "start 1 (it exited with code 1)"},
		{"ended well while the pod runs, Never", "Never s:1 a", "sb 1=0 a=running", "start 1 (it exited with code 0)"},
		{"died while a later init runs", "Always s:1 i:2 a", "sb 2=running 1=1", "start 1 (it exited with code 1)"},
		{"died as the furthest: the next waits", "Always s:1 i:2 a", "sb 1=1", "start 1 (it exited with code 1)"},
		{"died when the next is done", "Always s:1 i:2 a", "sb 2=0 1=1", "start 1 (it exited with code 1), start a (it has no container)"},
		{"two died, order of the spec", "Always s:1 s:2 a", "sb a=running 2=1 1=1", "start 1 (it exited with code 1), start 2 (it exited with code 1)"},
		{"cleaned away while the pod runs", "Always s:1 a", "sb a=running", "start 1 (it has no container)"},
		{"cleaned away while a later init runs", "Always s:1 i:2 a", "sb 2=running", "start 1 (it has no container)"},
		{"created, not started", "Always s:1 i:2 a", "sb 1=created", "start 1 (its container is created)"},
		{"unknown", "Never s:1 a", "sb 1=unknown a=running", "stop 1 (Init container 1 is in an unknown state, will be restarted), start 1 (its container is unknown)"},
		{"held back: the others go on", "Always s:1 s:2 a", "sb a=1 2=1 1=1+held", "start 2 (it exited with code 1), start a (it exited with code 1), start 1 (it exited with code 1) at 03:04:25, when its back-off of 20s has ended"},
		{"regular containers are done, sidecar runs", "Never s:1 a", "sb 1=running a=0", "stop the pod"},
		{"regular containers are done, sidecar died", "Never s:1 a", "sb 1=1 a=0", "stop the pod"},
		{"regular containers are done, sidecar is to be replaced", "OnFailure s:1? a", "sb 1=running+dead a=0", "stop the pod"},
		{"a plain init failed for good, sidecar runs", "Never s:1 i:2 a", "sb 2=1 1=running", "stop the pod"},
		{"regular container is held back: sidecar restarts", "Always s:1 a", "sb 1=1 a=1+held", "start 1 (it exited with code 1), start a (it exited with code 1) at 03:04:25, when its back-off of 20s has ended"},
	})
}

func TestPlanRegular(t *testing.T) {
	checkPlans(t, []planCase{
		{"all run", "Always a b", "sb a=running b=running", "nothing to do"},
		{"sandbox without containers", "Always a", "sb", "start a (it has no container)"},
		{"failed, Always", "Always a b", "sb a=1 b=running", "start a (it exited with code 1)"},
		{"succeeded, Always", "Always a", "sb a=0", "start a (it exited with code 0)"},
		{"failed, OnFailure", "OnFailure a b", "sb a=2 b=running", "start a (it exited with code 2)"},
		{"succeeded, OnFailure, another runs", "OnFailure a b", "sb a=0 b=running", "nothing to do"},
		{"succeeded, OnFailure, all", "OnFailure a b", "sb a=0 b=0", "stop the pod"},
		{"failed, Never, another runs", "Never a b", "sb a=2 b=running", "nothing to do"},
		{"ended, Never, all", "Never a", "sb a=0", "stop the pod"},
		{"own Never over Always", "Always a!Never b", "sb a=1 b=running", "nothing to do"},
		{"own Always over Never", "Never a!Always", "sb a=0", "start a (it exited with code 0)"},
		{"own OnFailure over Never", "Never a!OnFailure b", "sb a=1 b=running", "start a (it exited with code 1)"},
		{"rule In, listed", "Never a!Never{Restart/In/3,42} b", "sb a=42 b=running", "start a (it exited with code 42)"},
		{"rule In, not listed", "Never a!Never{Restart/In/3,42} b", "sb a=4 b=running", "nothing to do"},
		{"rule NotIn, not listed", "Never a!Never{Restart/NotIn/0} b", "sb a=1 b=running", "start a (it exited with code 1)"},
		{"rule NotIn, listed", "Never a!Never{Restart/NotIn/0} b", "sb a=0 b=running", "nothing to do"},
		{"rules need a policy of the container", "Never a{Restart/In/3} b", "sb a=3 b=running", "nothing to do"},
		{"killed for memory", "Always a", "sb a=137+oom", "start a (it exited with code 137, OOMKilled)"},
		{"created, not started", "Never a", "sb a=created", "start a (its container is created)"},
		{"unknown", "Never a", "sb a=unknown", "stop a (Container a is in an unknown state, will be restarted), start a (its container is unknown)"},
		{"definition changed", "Always a b", "sb a=running+changed b=running", "stop a (Container a definition changed, will be restarted), start a (definition changed)"},
		{"definition changed, even with Never", "Never a", "sb a=running+changed", "stop a (Container a definition changed, will be restarted), start a (definition changed)"},
		{"definition changed after its end, Never", "Never a b", "sb a=0+changed b=running", "nothing to do"},
		{"liveness failed, Always", "Always a? b", "sb a=running+started+dead b=running", "stop a (Container a failed liveness probe, will be restarted), start a (its liveness probe failed)"},
		{"liveness failed, OnFailure", "OnFailure a?", "sb a=running+dead", "stop a (Container a failed liveness probe, will be restarted), start a (its liveness probe failed)"},
		{"liveness failed, Never, another runs", "Never a? b", "sb a=running+dead b=running", "stop a (Container a failed liveness probe)"},
		{"liveness failed, Never, the only one", "Never a?", "sb a=running+dead", "stop the pod"},
		{"liveness failed, own Never", "Always a?!Never b", "sb a=running+dead b=running", "stop a (Container a failed liveness probe)"},
		{"liveness failed, rules are not asked", "Never a?!Never{Restart/NotIn/0} b", "sb a=running+dead b=running", "stop a (Container a failed liveness probe)"},
		{"liveness good", "Always a?", "sb a=running+started+live", "nothing to do"},
		{"startup failed, Always", "Always a?", "sb a=running+stuck", "stop a (Container a failed startup probe, will be restarted), start a (its startup probe failed)"},
		{"startup failed, Never, another runs", "Never a? b", "sb a=running+stuck b=running", "stop a (Container a failed startup probe)"},
		{"both failed: liveness is told", "Always a?", "sb a=running+stuck+dead", "stop a (Container a failed liveness probe, will be restarted), start a (its liveness probe failed)"},
		{"changed and failed: the change is told", "Never a?", "sb a=running+changed+dead", "stop a (Container a definition changed, will be restarted), start a (definition changed)"},
		{"verdict on an older incarnation", "Always a?", "sb a=running a=1+dead", "nothing to do"},
		{"the newest incarnation counts", "Always a", "sb a=running a=1 a=1", "nothing to do"},
		{"held back", "Always a b", "sb a=1+held b=running", "start a (it exited with code 1) at 03:04:25, when its back-off of 20s has ended"},
		{"all held back: the pod stays", "Always a", "sb a=1+held", "start a (it exited with code 1) at 03:04:25, when its back-off of 20s has ended"},
		{"held back, liveness failed", "Always a?", "sb a=running+dead a=1+held", "stop a (Container a failed liveness probe, will be restarted), start a (its liveness probe failed) 20s after it has stopped, when its back-off has ended"},
		{"one killed for good, one held back", "Always a?!Never b", "sb a=running+dead b=1+held", "stop a (Container a failed liveness probe), start b (it exited with code 1) at 03:04:25, when its back-off of 20s has ended"},
	})
}

func TestPlanEphemeral(t *testing.T) {
	checkPlans(t, []planCase{
		{"new one in a running pod", "Always e:d a", "sb a=running", "start d (ephemeral container is new)"},
		{"new one while init runs", "Always e:d i:1 a", "sb 1=running", "start d (ephemeral container is new)"},
		{"before init and regular ones", "Always e:d i:1 a", "sb 1=0", "start d (ephemeral container is new), start a (it has no container)"},
		{"runs", "Always e:d a", "sb a=running d=running", "nothing to do"},
		{"ended", "Always e:d a", "sb a=running d=1", "nothing to do"},
		{"created, never started", "Always e:d a", "sb a=running d=created", "nothing to do"},
		{"lost in an old sandbox", "Always e:d a", "sb sb-dead a=running d=1+old", "nothing to do"},
		{"does not keep a finished pod", "Never e:d a", "sb a=0 d=running", "stop the pod"},
		{"is not started in a finished pod", "Never e:d a", "sb a=0", "stop the pod"},
		{"is not started when init failed for good", "Never e:d i:1 a", "sb 1=1", "stop the pod"},
	})
}

func TestPlanRestartAll(t *testing.T) {
	const rule = "{RestartAllContainers/In/42}"
	checkPlans(t, []planCase{
		{"regular one asks", "Never i:1 s:2 a!Never" + rule + " b", "sb a=42 b=running 2=running 1=0", "restart all containers: remove b, 1, 2, a"},
		{"sidecar asks", "Never i:1 s:2" + rule + " a b", "sb a=running b=0 2=42 1=0", "restart all containers: remove a, b, 1, 2"},
		{"init container asks", "Always i:1 i:2!Never" + rule + " a", "sb 2=42 1=0", "restart all containers: remove 1, 2"},
		{"two ask", "Never i:1!Never" + rule + " i:2 a!Never" + rule + " b", "sb a=42 b=running 2=0 1=42", "restart all containers: remove b, 2, a, 1"},
		{"all incarnations go", "Always a!Never" + rule + " b", "sb a=42 b=running a=1 b=1", "restart all containers: remove b, b, a, a"},
		{"another code", "Never a!Never" + rule + " b", "sb a=1 b=running", "nothing to do"},
		{"it runs again", "Never a!Never" + rule + " b", "sb a=running b=running a=42", "nothing to do"},
		{"ephemeral ones stay", "Never e:d a!Never" + rule, "sb a=42 d=running", "restart all containers: remove a"},
		{"without a policy of its own a rule does not count", "Never a" + rule + " b", "sb a=42 b=running", "nothing to do"},
		{"pod is being deleted", "Never deleted a!Never" + rule, "sb a=42", "nothing to do"},
		{"a new sandbox is a restart of all", "Never i:1 a!Never" + rule, "sb-dead a=42 1=0", "stop the pod, create sandbox 1, start 1 (first init container)"},
		{"afterwards the first init container starts", "Never i:1 a!Never" + rule, "sb", "start 1 (first init container)"},
		{"an init container that succeeded asks for nothing", "Never i:1!Never{RestartAllContainers/In/0} a", "sb 1=0", "start a (it has no container)"},
	})
}

func TestPlanWhy(t *testing.T) {
	in := inputOf(t, specOf(t, "Never i:1 a?!Never{RestartAllContainers/In/42} b"), "sb b=running a=42+started 1=0")
	a := computePodActions(in)
	if want := "a exited with code 42, for which a rule of it restarts all containers"; a.Why != want {
		t.Errorf("got  %s\nwant %s", a.Why, want)
	}
	if got, want := in.String(), "sandbox 0 is ready; 1 exited 0; a exited 42, startup success, liveness unknown; b running"; got != want {
		t.Errorf("inputs\ngot  %s\nwant %s", got, want)
	}
	in = inputOf(t, specOf(t, "Never a?"), "sb a=running+dead")
	a = computePodActions(in)
	if want := "no regular container runs or is to be started; Container a failed liveness probe"; a.Why != want {
		t.Errorf("got  %s\nwant %s", a.Why, want)
	}
}

func TestSidecarWaits(t *testing.T) {
	p := specOf(t, "Always s:1 i:2 s:3 a b")
	for name, want := range map[string][]string{"1": {"3", "a", "b"}, "3": {"a", "b"}, "2": nil, "a": nil} {
		if diff := cmp.Diff(want, sidecarWaits(p, name)); diff != "" {
			t.Errorf("%s waits for (-want +got):\n%s", name, diff)
		}
	}
}

package critest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// listSandboxes returns the IDs of the clause's sandboxes that match a filter.
func (c *contract) listSandboxes(filter *runtimeapi.PodSandboxFilter) []string {
	c.Helper()
	resp, err := c.Runtime.ListPodSandbox(c.within(), &runtimeapi.ListPodSandboxRequest{Filter: filter})
	c.must("list sandboxes", err)
	var ids []string
	for _, sb := range resp.Items {
		if sb.GetMetadata().GetUid() == c.uid {
			ids = append(ids, sb.Id)
		}
	}
	return ids
}

// sandboxContract covers the lifecycle of sandboxes.
var sandboxContract = []contractTest{
	{name: "sandbox life", run: func(c *contract) {
		config := c.sandboxConfig(0)
		id := c.run(config)
		st := c.sandboxStatus(id)
		c.must("verify", verifySandbox(st))
		if len(id) != 64 || st.Id != id {
			c.Errorf("ids %q and %q, want one of 64 digits", id, st.Id)
		}
		if st.State != runtimeapi.PodSandboxState_SANDBOX_READY {
			c.Errorf("new sandbox is %s", st.State)
		}
		if st.Metadata.Name != config.Metadata.Name || st.Metadata.Namespace != config.Metadata.Namespace || st.Metadata.Uid != c.uid || st.Metadata.Attempt != 0 {
			c.Errorf("metadata %v, want %v", st.Metadata, config.Metadata)
		}
		if st.Labels["clause"] != "contract" || st.Annotations["note"] != c.uid {
			c.Errorf("labels %v and annotations %v, want those of the configuration", st.Labels, st.Annotations)
		}
		if hasIP := st.GetNetwork().GetIp() != ""; hasIP != c.PodNetwork {
			c.Errorf("network %v, address wanted: %v", st.Network, c.PodNetwork)
		}
		if got, want := st.GetLinux().GetNamespaces().GetOptions().GetNetwork(), config.Linux.SecurityContext.NamespaceOptions.Network; got != want {
			c.Errorf("network namespace %s, want %s", got, want)
		}

		c.stopSandbox(id)
		st = c.sandboxStatus(id)
		if st.State != runtimeapi.PodSandboxState_SANDBOX_NOTREADY || st.GetNetwork().GetIp() != "" {
			c.Errorf("stopped sandbox is %s with network %v, want NOTREADY without address", st.State, st.Network)
		}
		c.stopSandbox(id)
		c.removeSandbox(id)
		_, err := c.Runtime.PodSandboxStatus(c.within(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
		c.wantCode("status of a removed sandbox", err, codes.NotFound)
		c.stopSandbox(id)
		c.removeSandbox(id)
	}},
	{name: "sandbox with the host's network", run: func(c *contract) {
		config := c.sandboxConfig(0)
		config.Linux.SecurityContext.NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE
		st := c.sandboxStatus(c.run(config))
		if st.GetNetwork().GetIp() != "" || st.GetLinux().GetNamespaces().GetOptions().GetNetwork() != runtimeapi.NamespaceMode_NODE {
			c.Errorf("network %v of namespace %v, want no address", st.Network, st.GetLinux().GetNamespaces().GetOptions().GetNetwork())
		}
	}},
	{name: "sandbox lists", run: func(c *contract) {
		first := c.sandbox()
		c.stopSandbox(first)
		second := c.run(c.sandboxConfig(1))
		ready := &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY}
		notReady := &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY}
		mine := map[string]string{"io.kubernetes.pod.uid": c.uid}
		tests := []struct {
			name   string
			filter *runtimeapi.PodSandboxFilter
			want   []string
		}{
			{"all", nil, []string{first, second}},
			{"id", &runtimeapi.PodSandboxFilter{Id: first}, []string{first}},
			{"ready", &runtimeapi.PodSandboxFilter{State: ready}, []string{second}},
			{"not ready", &runtimeapi.PodSandboxFilter{State: notReady}, []string{first}},
			{"label", &runtimeapi.PodSandboxFilter{LabelSelector: mine}, []string{first, second}},
			{"label and state", &runtimeapi.PodSandboxFilter{LabelSelector: mine, State: ready}, []string{second}},
			{"other label", &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{"io.kubernetes.pod.uid": "other"}}, nil},
			{"one label of two", &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{"io.kubernetes.pod.uid": c.uid, "none": ""}}, nil},
		}
		for _, test := range tests {
			wantSet(c.T, "sandboxes by "+test.name, c.listSandboxes(test.filter), test.want)
		}
	}},
	{name: "sandbox names", run: func(c *contract) {
		id := c.sandbox()
		_, err := c.runAnswer(c.within(), c.sandboxConfig(0))
		wantReserved(c.T, "a second sandbox of the same name", err, "sandbox")
		c.stopSandbox(id)
		_, err = c.runAnswer(c.within(), c.sandboxConfig(0))
		wantReserved(c.T, "a sandbox with the name of a stopped one", err, "sandbox")
		c.removeSandbox(id)
		c.sandbox()
	}},
	{name: "cancelled sandbox", run: func(c *contract) {
		for attempt, after := range []time.Duration{5 * time.Millisecond, 20 * time.Millisecond, 40 * time.Millisecond} {
			config := c.sandboxConfig(uint32(attempt))
			ctx, cancel := context.WithTimeout(c.Context(), after)
			id, err := c.runAnswer(ctx, config)
			cancel()
			if err == nil { // a fast runtime
				c.removeAtEnd(id)
				continue
			}
			c.eventually(fmt.Sprintf("a sandbox after one cancelled at %s", after), func() error {
				for _, leftover := range c.listSandboxes(&runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{"io.kubernetes.pod.uid": c.uid}}) {
					c.removeSandbox(leftover)
				}
				id, err := c.runAnswer(c.within(), config)
				if err != nil {
					wantReserved(c.T, "a sandbox right after a cancelled one", err, "sandbox")
					return err
				}
				c.removeSandbox(id)
				return nil
			})
		}
	}},
	{name: "unknown handler", run: func(c *contract) {
		_, err := c.Runtime.RunPodSandbox(c.within(), &runtimeapi.RunPodSandboxRequest{Config: c.sandboxConfig(0), RuntimeHandler: "no-such-handler"})
		if err == nil || !strings.Contains(err.Error(), "no-such-handler") {
			c.Errorf("sandbox of an unknown handler: %v, want an error that names it", err)
		}
		c.sandbox() // its name is available again
	}},
	{name: "removal of a sandbox in use", run: func(c *contract) {
		sb := c.sandbox()
		id := c.deaf(sb, 0)
		c.removeSandbox(sb)
		_, err := c.Runtime.ContainerStatus(c.within(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
		c.wantCode("status of a container in a removed sandbox", err, codes.NotFound)
		wantSet(c.T, "sandboxes left", c.listSandboxes(nil), nil)
	}},
	{name: "stop of a sandbox in use", run: func(c *contract) {
		sb := c.sandbox()
		id := c.deaf(sb, 0)
		c.stopSandbox(sb)
		if st := c.exited(id); st.ExitCode != killedCode {
			c.Errorf("exit code %d of a container in a stopped sandbox, want %d", st.ExitCode, killedCode)
		}
		if _, err := c.createAnswer(sb, c.containerConfig(1, c.Commands.Forever)); err == nil {
			c.Errorf("a stopped sandbox takes a new container")
		}
	}},
	{
		name: "death of a sandbox",
		needs: func(t Target) string {
			if t.KillSandbox == nil {
				return "way to kill a sandbox"
			}
			return ""
		},
		run: func(c *contract) {
			sb := c.sandbox()
			ip := c.sandboxStatus(sb).GetNetwork().GetIp()
			id := c.started(sb, 0, c.Commands.Forever)
			config := c.containerConfig(1, c.Commands.Forever)
			config.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
			inside, err := c.createAnswer(sb, config)
			c.must("create a container in the sandbox's process namespace", err)
			c.must("start it", c.startAnswer(inside))
			c.KillSandbox(c.T, sb)()
			c.eventually("a killed sandbox becomes NOTREADY", func() error {
				if st := c.sandboxStatus(sb); st.State != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
					return fmt.Errorf("it is %s", st.State)
				}
				return nil
			})
			if got := c.sandboxStatus(sb).GetNetwork().GetIp(); got != ip {
				c.Errorf("address %q after the sandbox's death, want %q as before", got, ip)
			}
			if st := c.exited(inside); st.ExitCode != killedCode {
				c.Errorf("exit code %d of a container whose process namespace ended, want %d", st.ExitCode, killedCode)
			}
			if !c.Podshims {
				c.wantState(id, runtimeapi.ContainerState_CONTAINER_RUNNING)
			} else if st := c.exited(id); st.ExitCode != killedCode {
				c.Errorf("exit code %d of a container whose sandbox held it, want %d", st.ExitCode, killedCode)
			}
		},
	},
}

// wantReserved checks the rejection of a reserved name.
func wantReserved(t *testing.T, what string, err error, kind string) {
	t.Helper()
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "failed to reserve "+kind+" name") || !strings.Contains(err.Error(), "is reserved for") {
		t.Errorf("%s: %v, want FailedPrecondition, the name being reserved", what, err)
	}
}

// wantSet compares two lists regardless of order.
func wantSet(t *testing.T, what string, got, want []string) {
	t.Helper()
	got, want = slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

package critest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Target is a runtime that the contract suite runs against. The suite only changes what it has
// created.
type Target struct {
	Runtime runtimeapi.RuntimeServiceClient
	Images  runtimeapi.ImageServiceClient
	// Tasks is containerd's task service, nil if there is none.
	Tasks tasksapi.TasksClient
	// Image is the name of an image in the store, which provides Commands.
	Image    string
	Commands Commands
	// Handler is the runtime handler of the suite's sandboxes; empty means the runtime's default.
	Handler string
	// LogAnnotation is the annotation with the log path for shims that write the log instead of the
	// runtime.
	LogAnnotation string
	// Pod shims: the process that KillSandbox kills takes all containers with it, not only those of
	// its process namespace. CRI does not require it.
	Podshims bool
	// ExitsKept: the runtime reports the exit codes of containers that exited while it was down.
	// CRI does not require it.
	ExitsKept bool
	// LogDir is a directory that suite and runtime share under this path.
	LogDir string
	// CgroupParent is the parent of pod cgroups; empty means the runtime's default.
	CgroupParent string
	// PodNetwork: sandboxes can have their own network; otherwise all use the host's.
	PodNetwork bool
	// Restart, if not nil, stops the runtime, calls whileDown and starts the runtime again; it
	// returns when the runtime responds.
	Restart func(t *testing.T, whileDown func())
	// KillContainer and KillSandbox, if not nil, return a function that kills the process of a
	// running container or ready sandbox with SIGKILL, bypassing the runtime. It also works while
	// the runtime is down.
	KillContainer func(t *testing.T, id string) (kill func())
	KillSandbox   func(t *testing.T, id string) (kill func())
}

// Commands are command lines in a target's image.
type Commands struct {
	// Forever runs until SIGTERM and then exits with any code. SIGCONT does not terminate it.
	Forever []string
	// Write writes full lines to stdout, one after the other, until SIGTERM.
	Write []string
	// Exit exits at once with a code. It must also work as a command executed in a container.
	Exit func(code int) []string
	// Missing cannot be started.
	Missing []string
}

// patience is the timeout of every wait of the suite; it is no performance expectation.
const patience = 30 * time.Second

type contractTest struct {
	name string
	run  func(*contract)
	// needs returns what the target lacks for this clause, or "".
	needs func(Target) string
}

// RunContract checks that a runtime implements the contract of CRI and the peculiarities in the
// package documentation. Each clause is a subtest with its own target; targets may share one
// runtime. No other client may read or stall the runtime's events meanwhile.
func RunContract(t *testing.T, newTarget func(t *testing.T) Target) {
	runContract(t, newTarget, func(t *testing.T, clause func(*testing.T)) { clause(t) })
}

// RunContractInBubbles is RunContract with each clause, and the creation of its target, in a
// testing/synctest bubble: an in-memory runtime skips waits of seconds there.
func RunContractInBubbles(t *testing.T, newTarget func(t *testing.T) Target) {
	runContract(t, newTarget, synctest.Test)
}

func runContract(t *testing.T, newTarget func(t *testing.T) Target, within func(*testing.T, func(*testing.T))) {
	for _, tests := range [][]contractTest{serviceContract, sandboxContract, containerContract, eventContract, restartContract, taskContract} {
		for _, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				within(t, func(t *testing.T) {
					c := &contract{T: t, Target: newTarget(t), uid: randomName()}
					if test.needs != nil {
						if lacks := test.needs(c.Target); lacks != "" {
							t.Skipf("the target has no %s", lacks)
						}
					}
					test.run(c)
				})
			})
		}
	}
}

// contract is one running clause with its own pod, which is removed at the end.
type contract struct {
	*testing.T
	Target
	uid string // of the clause's pod
}

func randomName() string {
	var b [6]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// within returns a context for one step, bounded by the test and by patience.
func (c *contract) within() context.Context {
	ctx, cancel := context.WithTimeout(c.Context(), patience)
	c.Cleanup(cancel)
	return ctx
}

// eventually polls until the check returns nil.
func (c *contract) eventually(what string, check func() error) {
	c.Helper()
	ctx := c.within()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			c.Fatalf("%s: not within %s: %v", what, patience, err)
		}
	}
}

// must fails the clause on an error.
func (c *contract) must(what string, err error) {
	c.Helper()
	if err != nil {
		c.Fatalf("%s: %v", what, err)
	}
}

func (c *contract) wantCode(what string, err error, want codes.Code) {
	c.Helper()
	if got := status.Code(err); got != want {
		c.Errorf("%s: code %s (%v), want %s", what, got, err, want)
	}
}

func (c *contract) sandboxConfig(attempt uint32) *runtimeapi.PodSandboxConfig {
	network := runtimeapi.NamespaceMode_NODE
	if c.PodNetwork {
		network = runtimeapi.NamespaceMode_POD
	}
	return &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "contract", Namespace: "berth-contract", Uid: c.uid, Attempt: attempt},
		LogDirectory: filepath.Join(c.LogDir, c.uid),
		Labels:       map[string]string{"io.kubernetes.pod.uid": c.uid, "clause": "contract"},
		Annotations:  map[string]string{"note": c.uid},
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent: c.CgroupParent,
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{Network: network, Pid: runtimeapi.NamespaceMode_CONTAINER},
			},
		},
	}
}

// run creates a sandbox that is removed at the end of the clause.
func (c *contract) run(config *runtimeapi.PodSandboxConfig) string {
	c.Helper()
	id, err := c.runAnswer(c.within(), config)
	c.must("run sandbox", err)
	c.removeAtEnd(id)
	return id
}

func (c *contract) runAnswer(ctx context.Context, config *runtimeapi.PodSandboxConfig) (string, error) {
	resp, err := c.Runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: c.Handler})
	return resp.GetPodSandboxId(), err
}

func (c *contract) sandbox() string {
	c.Helper()
	return c.run(c.sandboxConfig(0))
}

func (c *contract) removeAtEnd(sandboxID string) {
	c.Cleanup(func() {
		// The test's own context is done by now.
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if _, err := c.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: sandboxID}); err != nil {
			c.Errorf("clean up: stop sandbox %s: %v", sandboxID, err)
		}
		if _, err := c.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sandboxID}); err != nil {
			c.Errorf("clean up: remove sandbox %s: %v", sandboxID, err)
		}
	})
}

// containerConfig is the configuration of a container named "main".
func (c *contract) containerConfig(attempt uint32, command []string) *runtimeapi.ContainerConfig {
	config := &runtimeapi.ContainerConfig{
		Metadata:    &runtimeapi.ContainerMetadata{Name: "main", Attempt: attempt},
		Image:       &runtimeapi.ImageSpec{Image: c.Image},
		Command:     command,
		Labels:      map[string]string{"io.kubernetes.pod.uid": c.uid, "attempt": fmt.Sprint(attempt)},
		Annotations: map[string]string{"note": c.uid},
		LogPath:     fmt.Sprintf("%d.log", attempt),
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			NamespaceOptions: c.sandboxConfig(0).Linux.SecurityContext.NamespaceOptions,
		}},
	}
	if c.LogAnnotation != "" {
		config.Annotations[c.LogAnnotation] = filepath.Join(c.LogDir, c.uid, config.LogPath)
		config.LogPath = ""
	}
	return config
}

func (c *contract) logOf(st *runtimeapi.ContainerStatus) string {
	if c.LogAnnotation != "" {
		return st.Annotations[c.LogAnnotation]
	}
	return st.LogPath
}

func (c *contract) createAnswer(sandboxID string, config *runtimeapi.ContainerConfig) (string, error) {
	resp, err := c.Runtime.CreateContainer(c.within(), &runtimeapi.CreateContainerRequest{
		PodSandboxId: sandboxID, Config: config, SandboxConfig: c.sandboxConfig(0),
	})
	return resp.GetContainerId(), err
}

func (c *contract) create(sandboxID string, attempt uint32, command []string) string {
	c.Helper()
	c.makeLogDir()
	id, err := c.createAnswer(sandboxID, c.containerConfig(attempt, command))
	c.must("create container", err)
	return id
}

func (c *contract) startAnswer(id string) error {
	_, err := c.Runtime.StartContainer(c.within(), &runtimeapi.StartContainerRequest{ContainerId: id})
	return err
}

func (c *contract) started(sandboxID string, attempt uint32, command []string) string {
	c.Helper()
	id := c.create(sandboxID, attempt, command)
	c.must("start container", c.startAnswer(id))
	return id
}

// deaf starts a container that ignores its stop signal.
func (c *contract) deaf(sandboxID string, attempt uint32) string {
	c.Helper()
	c.makeLogDir()
	config := c.containerConfig(attempt, c.Commands.Forever)
	config.StopSignal = runtimeapi.Signal_SIGCONT
	id, err := c.createAnswer(sandboxID, config)
	c.must("create container", err)
	c.must("start container", c.startAnswer(id))
	return id
}

func (c *contract) stop(id string, timeout int64) {
	c.Helper()
	_, err := c.Runtime.StopContainer(c.within(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: timeout})
	c.must("stop container", err)
}

func (c *contract) remove(id string) {
	c.Helper()
	_, err := c.Runtime.RemoveContainer(c.within(), &runtimeapi.RemoveContainerRequest{ContainerId: id})
	c.must("remove container", err)
}

func (c *contract) stopSandbox(id string) {
	c.Helper()
	_, err := c.Runtime.StopPodSandbox(c.within(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
	c.must("stop sandbox", err)
}

func (c *contract) removeSandbox(id string) {
	c.Helper()
	_, err := c.Runtime.RemovePodSandbox(c.within(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
	c.must("remove sandbox", err)
}

func (c *contract) status(id string) *runtimeapi.ContainerStatus {
	c.Helper()
	resp, err := c.Runtime.ContainerStatus(c.within(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	c.must("container status", err)
	return resp.Status
}

func (c *contract) sandboxStatus(id string) *runtimeapi.PodSandboxStatus {
	c.Helper()
	resp, err := c.Runtime.PodSandboxStatus(c.within(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
	c.must("sandbox status", err)
	return resp.Status
}

// exited waits until a container has exited.
func (c *contract) exited(id string) *runtimeapi.ContainerStatus {
	c.Helper()
	var st *runtimeapi.ContainerStatus
	c.eventually("container exits", func() error {
		st = c.status(id)
		if st.State != runtimeapi.ContainerState_CONTAINER_EXITED {
			return fmt.Errorf("it is %s", st.State)
		}
		return nil
	})
	return st
}

func (c *contract) wantState(id string, want runtimeapi.ContainerState) {
	c.Helper()
	if got := c.status(id).State; got != want {
		c.Errorf("container is in state %s, want %s", got, want)
	}
}

// verifyContainer checks the fields that an agent requires.
func verifyContainer(st *runtimeapi.ContainerStatus) error {
	switch {
	case st.GetId() == "":
		return errors.New("container status without id")
	case st.GetMetadata().GetName() == "":
		return errors.New("container status without metadata.name")
	case st.GetCreatedAt() == 0:
		return errors.New("container status without createdAt")
	case st.GetImage().GetImage() == "":
		return errors.New("container status without image.image")
	case st.GetImageRef() == "":
		return errors.New("container status without imageRef")
	}
	return nil
}

// verifySandbox checks the fields that an agent requires.
func verifySandbox(st *runtimeapi.PodSandboxStatus) error {
	m := st.GetMetadata()
	switch {
	case st.GetId() == "":
		return errors.New("sandbox status without id")
	case m.GetName() == "" || m.GetNamespace() == "" || m.GetUid() == "":
		return fmt.Errorf("sandbox status with incomplete metadata %v", m)
	case st.GetCreatedAt() == 0:
		return errors.New("sandbox status without createdAt")
	}
	return nil
}

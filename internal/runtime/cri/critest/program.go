package critest

import (
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Program is the behaviour of a container. The zero Program runs until its stop signal and then
// exits with 0.
type Program struct {
	// Exits: it exits by itself, after After, with Code.
	Exits bool
	After time.Duration
	Code  int32
	// IgnoresStop makes it ignore the stop signal, so that StopContainer waits for its timeout and
	// kills it (exit code 137). Any program survives a stop signal that does not terminate a
	// process by default, such as SIGCONT.
	IgnoresStop bool
	// StopDelay is the time from the stop signal to the exit, and StopCode the exit code then.
	StopDelay time.Duration
	StopCode  int32
	// NoStopSignal is an invalid stop signal of its image, such as "SIGFOO": StopContainer fails at
	// once, except with a timeout of 0.
	NoStopSignal string
	// StartError makes StartContainer fail with this message; the container becomes EXITED, 128,
	// StartError.
	StartError string
	// Output are lines that it writes to stdout when it starts (see WithLogs), and again every
	// OutputEvery unless that is 0.
	Output      []string
	OutputEvery time.Duration
	// Exec returns the result of ExecSync; nil returns exit code 0 without output.
	Exec func(command []string) ExecResult
}

// ExecResult is the result of a command in a container.
type ExecResult struct {
	Stdout, Stderr string
	ExitCode       int32
	// Takes is the duration of the command; if it exceeds the call's timeout, the call fails with
	// DeadlineExceeded.
	Takes time.Duration
	// Err makes the call fail.
	Err error
}

// Forever returns a program that runs until it is stopped.
func Forever() Program { return Program{} }

// ExitsAfter returns a program that exits by itself after d.
func ExitsAfter(d time.Duration, code int32) Program {
	return Program{Exits: true, After: d, Code: code}
}

// FailsToStart returns a program that cannot be started.
func FailsToStart(message string) Program { return Program{StartError: message} }

// Programs are the programs of containers.
type Programs struct {
	mu          *sync.Mutex                                       // the runtime's
	byReference map[string]Program                                // guarded by mu; by image or by container reference
	choose      func(*runtimeapi.ContainerConfig) (Program, bool) // guarded by mu
}

// Set sets the program of containers by reference: "container", "pod/container" or
// "namespace/pod/container"; the most specific one is used. It applies to later starts and precedes
// programs of images.
func (ps *Programs) Set(ref string, p Program) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.byReference[ref] = p
}

// SetImage sets the program of the containers of an image, for later starts.
func (ps *Programs) SetImage(name string, p Program) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.byReference[imageProgram(normalizeImage(name))] = p
}

// SetFunc sets a function that selects the program of containers without a program of Set, for
// later starts. If it returns false, the image's program is used. The function must not call
// methods of the runtime.
func (ps *Programs) SetFunc(f func(*runtimeapi.ContainerConfig) (Program, bool)) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.choose = f
}

// imageProgram is the key of an image's program; no container reference contains a space.
func imageProgram(name string) string { return "image " + name }

// of returns the program of a container. The caller holds the lock.
func (ps *Programs) of(c *container) Program {
	for _, ref := range c.references() {
		if p, ok := ps.byReference[ref]; ok {
			return p
		}
	}
	if ps.choose != nil {
		if p, ok := ps.choose(c.config); ok {
			return p
		}
	}
	for _, tag := range c.image.tags {
		if p, ok := ps.byReference[imageProgram(tag)]; ok {
			return p
		}
	}
	return Forever()
}

// processes are the processes of the running containers.
type processes struct {
	mu     *sync.Mutex // the runtime's
	life   *lifetime
	events *Events
}

// arm starts the program's timers. The caller holds the lock.
func (p processes) arm(c *container) {
	if p.life.closed || c.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return
	}
	if c.program.Exits {
		c.timers.exit = p.exitAfter(c, c.program.After, c.program.Code)
	}
	if c.program.OutputEvery > 0 {
		c.timers.output = time.AfterFunc(c.program.OutputEvery, func() { p.writeAgain(c) })
	}
}

// writeAgain writes the program's output and resets the timer.
func (p processes) writeAgain(c *container) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.closed || !c.alive() {
		return
	}
	if err := c.writeOutput(); err == nil { // like a process that stops writing after an error
		c.timers.output.Reset(c.program.OutputEvery)
	}
}

// exitAfter makes a container exit after d.
func (p processes) exitAfter(c *container, d time.Duration, code int32) *time.Timer {
	return time.AfterFunc(d, func() {
		if !p.life.begin() {
			return
		}
		defer p.life.running.Done()
		p.exit(c, code, "")
	})
}

// instantExit is how long before its start an instantly exiting container finishes.
const instantExit = time.Millisecond

// disarm stops the container's timers. The caller holds the runtime's lock.
func (c *container) disarm() {
	for _, timer := range []*time.Timer{c.timers.exit, c.timers.stop, c.timers.output} {
		if timer != nil {
			timer.Stop()
		}
	}
}

// signalStop sends the stop signal, if it is valid.
func (p processes) signalStop(c *container) error {
	if signal := c.program.NoStopSignal; signal != "" && c.config.StopSignal == runtimeapi.Signal_RUNTIME_DEFAULT {
		return status.Errorf(codes.Unknown, "failed to parse stop signal %q: invalid signal: %s", signal, signal)
	}
	if !harmless(c.stopSignal()) {
		p.terminate(c)
	}
	return nil
}

// terminate sends a signal that terminates a process by default.
func (p processes) terminate(c *container) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.closed || c.state != runtimeapi.ContainerState_CONTAINER_RUNNING || c.program.IgnoresStop || c.timers.stop != nil {
		return
	}
	c.timers.stop = p.exitAfter(c, c.program.StopDelay, c.program.StopCode)
}

// harmless reports whether a signal does not terminate a process by default.
func harmless(signal runtimeapi.Signal) bool {
	switch signal {
	case runtimeapi.Signal_SIGCONT, runtimeapi.Signal_SIGCHLD, runtimeapi.Signal_SIGCLD, runtimeapi.Signal_SIGURG, runtimeapi.Signal_SIGWINCH:
		return true
	default:
		return false
	}
}

// kill sends SIGKILL and does not wait.
func (p processes) kill(c *container) {
	if !p.life.begin() {
		return
	}
	go func() {
		defer p.life.running.Done()
		p.exit(c, killedCode, "")
	}()
}

// exit terminates a container that is alive and notifies subscribers; it reports whether the
// container was alive. An empty reason is derived from the code.
func (p processes) exit(c *container, code int32, reason string) bool {
	p.mu.Lock()
	if !c.alive() {
		p.mu.Unlock()
		return false
	}
	switch {
	case p.events.queue == nil:
		c.unseen = true
		code, reason = unknownCode, "Unknown"
	case c.state == runtimeapi.ContainerState_CONTAINER_UNKNOWN:
		code, reason = unknownCode, "Unknown"
	case reason == "":
		reason = exitReason(code)
	}
	c.state = runtimeapi.ContainerState_CONTAINER_EXITED
	c.finishedAt = time.Now()
	if c.program.Exits && c.program.After == 0 {
		c.finishedAt = c.startedAt.Add(-instantExit)
	}
	c.exitCode = code
	c.reason = reason
	c.disarm()
	c.closeLog()
	n := p.events.notice(runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, c.id, c.sandbox)
	p.mu.Unlock()
	close(c.exited)

	// STARTED of a container always precedes its STOPPED.
	p.life.wait(c.announced)
	n.publish()
	close(c.exitPublished)
	return true
}

// alive reports whether a container has a process from the runtime's view. The caller holds the
// runtime's lock.
func (c *container) alive() bool {
	return c.state == runtimeapi.ContainerState_CONTAINER_RUNNING || c.state == runtimeapi.ContainerState_CONTAINER_UNKNOWN
}

func exitReason(code int32) string {
	if code == 0 {
		return "Completed"
	}
	return "Error"
}

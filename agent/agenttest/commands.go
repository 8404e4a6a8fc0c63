package agenttest

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/runtime/cri/critest"
)

// commands are the results of commands in containers. They are safe for concurrent use.
type commands struct {
	mu      sync.Mutex
	results map[string]critest.ExecResult // guarded by mu; by "pod/container command"
	counts  map[string]int                // guarded by mu; likewise
}

func newCommands() *commands {
	return &commands{results: map[string]critest.ExecResult{}, counts: map[string]int{}}
}

// in returns the function that answers commands in the container.
func (c *commands) in(ref string) func([]string) critest.ExecResult {
	return func(command []string) critest.ExecResult {
		c.mu.Lock()
		defer c.mu.Unlock()
		key := ref + " " + strings.Join(command, " ")
		c.counts[key]++
		return c.results[key]
	}
}

// program is the default program of containers.
func (c *commands) program(cfg *runtimeapi.ContainerConfig) (critest.Program, bool) {
	return critest.Program{Exec: c.in(cfg.GetLabels()["io.kubernetes.pod.name"] + "/" + cfg.GetMetadata().GetName())}, true
}

func (c *commands) count(ref, command string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strconv.Itoa(c.counts[ref+" "+command])
}

func (c *commands) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.counts)
}

// set parses a command and its result.
func (c *commands) set(ref string, words []string) error {
	var r critest.ExecResult
	var err error
	i := 0
	for ; i < len(words) && words[i] != "exits" && words[i] != "fails"; i++ {
	}
	command, end := words[:i], words[i:]
	if len(end) < 2 {
		return errors.New("a command exits or fails")
	}
	if end[0] == "fails" {
		r.Err = status.Error(codes.Unknown, strings.Join(end[1:], " "))
		end = nil
	} else {
		var code int
		if code, err = strconv.Atoi(end[1]); err != nil {
			return err
		}
		r.ExitCode, end = int32(code), end[2:]
	}
	if len(end) >= 2 && end[0] == "after" {
		if r.Takes, err = time.ParseDuration(end[1]); err != nil {
			return err
		}
		end = end[2:]
	}
	if len(end) >= 2 && end[0] == "saying" {
		r.Stdout, end = strings.Join(end[1:], " "), nil
	}
	if len(end) > 0 {
		return fmt.Errorf("what is %q", strings.Join(end, " "))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.results[ref+" "+strings.Join(command, " ")] = r
	return nil
}

package cni

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netns"
)

// A runtime is told the same, to the byte, whether the plugin is a program or runs in its process.
func TestAnswersAreThoseOfTheProgram(t *testing.T) {
	var of [][]string
	bothWays(t, ours(range4, range6), func(_ *testing.T, h *host) { of = append(of, answers(h)) })
	if len(of) != 2 {
		t.Fatalf("answers of %d ways", len(of))
	}
	for i, program := range of[0] {
		if inProcess := of[1][i]; inProcess != program {
			t.Errorf("in process  %s\nprogram     %s", inProcess, program)
		}
	}
}

// hardwareAddr is what differs from one ADD to the next.
var hardwareAddr = regexp.MustCompile(`([0-9a-f]{2}:){5}[0-9a-f]{2}`)

// answers calls the plugin in each way, right and wrong, and returns what it answers.
func answers(h *host) (said []string) {
	for _, v := range []string{"", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0", "9.9.9"} {
		p := h.pod("pod"+v, all)
		var result json.RawMessage
		config := func() map[string]any {
			c := h.plugins(h, p.config)[0]
			c["cniVersion"] = v
			if result != nil {
				c["prevResult"] = result
			}
			return c
		}
		ask := func(config any, env ...string) []byte {
			env = append([]string{"CNI_CONTAINERID=" + p.id, "CNI_NETNS=" + p.file, "CNI_IFNAME=eth0"}, env...)
			out, wrong := h.call("berth-cni", config, env...)
			told, err := json.Marshal(wrong)
			if err != nil {
				h.t.Fatal(err)
			}
			text := strings.ReplaceAll(fmt.Sprintf("%s %v: %s %s", v, env, out, told), h.dir, "DIR")
			said = append(said, hardwareAddr.ReplaceAllString(text, "MAC"))
			return out
		}
		for _, command := range []string{"ADD", "DEL"} {
			command = "CNI_COMMAND=" + command
			ask("{", command)
			ask("", command)
			ask(map[string]any{"cniVersion": v}, command)
			ask(map[string]any{"cniVersion": v, "name": "a b"}, command)
			ask(map[string]any{"cniVersion": v, "name": "net"}, command)
			for _, wrong := range []string{
				"CNI_CONTAINERID=", "CNI_CONTAINERID=-", "CNI_IFNAME=", "CNI_IFNAME=a/b", "CNI_IFNAME=a-name-that-is-too-long", "CNI_PATH=",
			} {
				ask(config(), command, wrong)
			}
		}
		ask(config(), "CNI_COMMAND=ADD", "CNI_NETNS=")
		ask(config(), "CNI_COMMAND=ADD", "CNI_NETNS=/none")
		ask(config(), "CNI_COMMAND=")
		ask(config(), "CNI_COMMAND=MOVE")
		ask(config(), "CNI_COMMAND=VERSION")
		ask(config(), "CNI_COMMAND=STATUS")
		if out := ask(config(), "CNI_COMMAND=ADD", "CNI_ARGS=K8S_POD_NAME=pod"); out != nil {
			result = out
		}
		ask(config(), "CNI_COMMAND=CHECK")
		ask(config(), "CNI_COMMAND=ADD")
		ask(config(), "CNI_COMMAND=DEL")
		ask(config(), "CNI_COMMAND=DEL", "CNI_NETNS=")
		result = nil
		ask(config(), "CNI_COMMAND=ADD", "CNI_NETNS_OVERRIDE=1")
		ask(config(), "CNI_COMMAND=GC")
	}
	return said
}

// A thread that a call leaves in another namespace is not used again, and nothing of a call stays
// open.
func TestNothingOfACallStays(t *testing.T) {
	h := newHost(t, ours(range4, range6))
	h.inProcess(func(string) {})
	p, other := h.pod("pod", all), h.pod("other", all)
	files := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before := 0
	for range 4 {
		p.result = nil
		p.must("ADD")
		if told := other.run("ADD"); told == nil || told.Code != types.ErrTryAgainLater {
			t.Errorf("ADD with a port that is in use: %v", told)
		}
		p.must("DEL")
		p.must("DEL")
		if before == 0 {
			before = files() // with what is opened once
		}
	}
	if after := files(); after != before {
		t.Errorf("%d files are open, and were %d", after, before)
	}
	for end := time.After(20 * time.Second); ; {
		stray := threadsIn(t, h.ns)
		if len(stray) == 0 {
			return
		}
		select {
		case <-end:
			t.Fatalf("in the namespace of a call: %v", stray)
		case <-time.After(time.Millisecond):
		}
	}
}

// threadsIn are the threads of this process that are in a network namespace, without its first one,
// which stays, and does nothing any more.
func threadsIn(t *testing.T, ns netns.NsHandle) (in []string) {
	t.Helper()
	threads, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		if strings.HasPrefix(thread, fmt.Sprintf("/proc/self/task/%d/", os.Getpid())) {
			continue
		}
		of, err := netns.GetFromPath(thread)
		if err != nil {
			continue // it has ended
		}
		if of.Equal(ns) {
			in = append(in, thread)
		}
		_ = of.Close()
	}
	return in
}

// A panic is the error of its call. The process lives, and a DEL leaves nothing.
func TestPanic(t *testing.T) {
	h := newHost(t, ours(range4))
	h.inProcess(func(name string) {
		if name == "connect" {
			panic("no such thing")
		}
	})
	p := h.pod("pod", all)
	if told := p.run("ADD"); told == nil || told.Code != types.ErrInternal || !strings.Contains(told.Msg, "panic: no such thing") || !strings.Contains(told.Msg, "attach") {
		t.Errorf("ADD: %v", told)
	}
	p.must("DEL")
	if left := h.traces(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// A call that nobody waits for any more goes on to its end, and one that has not begun is none.
func TestCallWithoutItsCaller(t *testing.T) {
	h := newHost(t, ours(range4))
	ctx, leave := context.WithCancel(t.Context())
	h.inProcess(func(name string) {
		if name == "veth" {
			leave()
		}
	})
	stdin, err := json.Marshal(h.plugins(h, nil)[0])
	if err != nil {
		t.Fatal(err)
	}
	call := func(p *testPod) (string, error) {
		out, err := h.exec.ExecPlugin(ctx, filepath.Join(h.programs, "berth-cni"), stdin, []string{
			"CNI_COMMAND=ADD", "CNI_CONTAINERID=" + p.id, "CNI_NETNS=" + p.file, "CNI_IFNAME=eth0", "CNI_PATH=" + h.programs,
		})
		return string(out), err
	}
	if out, err := call(h.pod("left", nil)); err != nil || !strings.Contains(out, "10.88.0.2/24") {
		t.Errorf("%s, error %v", out, err)
	}
	before := h.traces()
	if out, err := call(h.pod("late", nil)); err == nil {
		t.Errorf("a call of nobody has the answer %s", out)
	}
	if after := h.traces(); len(after) != len(before) || len(before) != 2 {
		t.Errorf("there was %v, and is %v", before, after)
	}
}

// A program of the same name that is not the runtime's own is run, as it may be of another version.
func TestProgramOfAnotherVersion(t *testing.T) {
	h := newHost(t, ours(range4))
	h.inProcess(func(string) {})
	h.programs = t.TempDir()
	if err := os.WriteFile(filepath.Join(h.programs, "berth-cni"), []byte("#!/bin/sh\necho '{\"code\": 100, \"msg\": \"another version\"}'; exit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if told := h.pod("pod", nil).run("ADD"); told == nil || told.Msg != "another version" {
		t.Errorf("ADD: %v", told)
	}
}

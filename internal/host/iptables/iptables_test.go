package iptables

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// fakeTables are tables in memory, which answer as iptables does.
type fakeTables struct {
	mu      sync.Mutex
	have    []string // "iptables mangle KUBE-IPTABLES-HINT", and with a rule
	absent  bool     // no program is there
	legacy  bool
	runs    int
	deleted func()
}

func (f *fakeTables) Run(_ context.Context, program string, args ...string) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.runs++
	if f.absent {
		return "", fmt.Errorf("%s: %w", program, exec.ErrNotFound)
	}
	table, verb := args[3], args[4]
	entry := strings.Join(append([]string{program, table}, args[5:]...), " ")
	chain := strings.Join([]string{program, table, args[5]}, " ")
	there := slices.Contains(f.have, entry)
	builtIn := args[5] == "INPUT" || args[5] == "OUTPUT"
	switch {
	case verb == "-N" && there:
		return "iptables: Chain already exists.\n", errors.New("exit status 1")
	case verb == "-C" && !there:
		return "iptables: Bad rule (does a matching rule exist in that chain?).\n", errors.New("exit status 1")
	case verb == "-A" && !builtIn && !slices.Contains(f.have, chain):
		return "iptables: No chain/target/match by that name.\n", errors.New("exit status 1")
	case verb == "-I":
		f.have = append([]string{entry}, f.have...)
	case verb != "-C":
		f.have = append(f.have, entry)
	}
	return "", nil
}

func (f *fakeTables) Follow(ctx context.Context, _ []string, deleted func()) error {
	if f.legacy {
		return ErrNoEvents
	}
	f.mu.Lock()
	f.deleted = deleted
	f.mu.Unlock()
	<-ctx.Done()
	return ctx.Err()
}

// flush deletes everything, as an administrator does.
func (f *fakeTables) flush() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.have = nil
	if f.deleted != nil {
		f.deleted()
	}
}

// counts returns how many entries there are, and how many programs ran since it was asked last.
func (f *fakeTables) counts() (entries, runs int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer func() { f.runs = 0 }()
	return len(f.have), f.runs
}

// pass lets time pass.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// keep runs a keeper in a bubble.
func keep(t *testing.T, f *fakeTables, test func(log *bytes.Buffer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		k := &Keeper{Machine: f, Log: slog.New(slog.NewTextHandler(&log, nil))}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- k.Run(ctx) }()
		synctest.Wait()
		test(&log)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestKeeper(t *testing.T) {
	f := &fakeTables{}
	keep(t, f, func(log *bytes.Buffer) {
		if n, _ := f.counts(); n != len(steps) || log.Len() > 0 {
			t.Errorf("%d of %d are there; log: %s", n, len(steps), log)
		}
		pass(24 * time.Hour)
		if _, runs := f.counts(); runs != 0 {
			t.Errorf("%d programs ran while nothing happened", runs)
		}
		f.flush()
		pass(2 * settleTime)
		if n, _ := f.counts(); n != len(steps) || !strings.Contains(log.String(), "were missing, and were made") {
			t.Errorf("after a flush %d are there; log: %s", n, log)
		}
	})
	f.counts()
	keep(t, f, func(log *bytes.Buffer) {
		if n, _ := f.counts(); n != len(steps) || log.Len() > 0 {
			t.Errorf("the next agent has %d; log: %s", n, log)
		}
	})
}

// A firewall of the machine accepts or drops all packets at the end of its rules: packets go to
// ours before.
func TestKeeperOfAFirewall(t *testing.T) {
	for _, chain := range []string{"INPUT", "OUTPUT"} {
		accepts := "iptables filter " + chain + " -j ACCEPT"
		f := &fakeTables{have: []string{accepts}}
		keep(t, f, func(*bytes.Buffer) {
			if jump := slices.Index(f.have, "iptables filter "+chain+" -j KUBE-FIREWALL"); jump < 0 || jump > slices.Index(f.have, accepts) {
				t.Errorf("the tables are %q", f.have)
			}
		})
	}
}

// Where the kernel tells nothing, the tables are looked at each minute.
func TestKeeperOfLegacyTables(t *testing.T) {
	f := &fakeTables{legacy: true}
	keep(t, f, func(log *bytes.Buffer) {
		f.flush()
		pass(period + time.Second)
		if n, _ := f.counts(); n != len(steps) {
			t.Errorf("after a flush %d are there; log: %s", n, log)
		}
	})
}

func TestKeeperWithoutProgram(t *testing.T) {
	f := &fakeTables{absent: true}
	keep(t, f, func(log *bytes.Buffer) {
		f.flush()
		pass(time.Minute)
		if n := strings.Count(log.String(), "install iptables"); n != 1 || strings.Count(log.String(), "executable file not found") != 1 {
			t.Errorf("told %d times:\n%s", n, log)
		}
	})
}

// What fails is tried again, also where the kernel tells changes: a table that is locked, a program
// that is installed later.
func TestKeeperTriesAgain(t *testing.T) {
	f := &fakeTables{absent: true}
	keep(t, f, func(log *bytes.Buffer) {
		f.mu.Lock()
		f.absent = false
		f.mu.Unlock()
		pass(period + time.Second)
		if n, _ := f.counts(); n != len(steps) {
			t.Errorf("%d of %d are there; log: %s", n, len(steps), log)
		}
		pass(24 * time.Hour)
		if _, runs := f.counts(); runs != 0 {
			t.Errorf("%d programs ran while nothing happened", runs)
		}
	})
}

func TestConcerns(t *testing.T) {
	message := func(kind uint16, text string) []byte {
		m := make([]byte, unix.SizeofNlMsghdr, 64)
		m = append(m, text...)
		binary.NativeEndian.PutUint32(m, uint32(len(m)))
		binary.NativeEndian.PutUint16(m[4:], kind)
		for len(m)%4 != 0 {
			m = append(m, 0)
		}
		return m
	}
	const added = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWRULE
	for name, c := range map[string]struct {
		messages [][]byte
		want     bool
	}{
		"nothing":        {nil, false},
		"cut off":        {[][]byte{{200, 0, 0, 0, 1, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}}, false},
		"a table":        {[][]byte{message(deleteTable, "mangle\x00")}, true},
		"our chain":      {[][]byte{message(deleteChain, "mangle\x00KUBE-IPTABLES-HINT\x00")}, true},
		"our rule":       {[][]byte{message(deleteRule, "filter\x00KUBE-FIREWALL\x00")}, true},
		"a rule of ours": {[][]byte{message(added, "filter\x00KUBE-FIREWALL\x00")}, false},
		"others":         {[][]byte{message(deleteChain, "nat\x00KUBE-SVC-X\x00"), message(deleteRule, "nat\x00KUBE-SERVICES\x00")}, false},
		"ours behind":    {[][]byte{message(deleteRule, "nat\x00KUBE-SERVICES\x00"), message(deleteRule, "filter\x00OUTPUT\x00")}, true},
		"a longer name":  {[][]byte{message(deleteChain, "filter\x00KUBE-FIREWALL-X\x00")}, false},
	} {
		if got := concerns(bytes.Join(c.messages, nil), names); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

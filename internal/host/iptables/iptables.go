// Package iptables keeps what other programs expect of a kubelet in the tables of iptables: the
// chain KUBE-IPTABLES-HINT, and the rule of KUBE-FIREWALL against martian packets (KEP-3178).
//
// Owns: these two chains, and the jumps to the latter.
// Reads: the kernel's messages about nftables (group NFNLGRP_NFTABLES of NETLINK_NETFILTER).
// Never: touches chains or rules of others, removes its own: others go by them while the agent is
// away.
package iptables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// Machine is this machine, or what stands for it in tests.
type Machine interface {
	// Run runs iptables or ip6tables. It wraps exec.ErrNotFound if there is no such program.
	Run(ctx context.Context, program string, args ...string) (out string, err error)
	// Follow calls deleted each time that chains or rules of these names, or whole tables, may have
	// been deleted, until ctx is done. It wraps ErrNoEvents where the kernel does not tell.
	Follow(ctx context.Context, names []string, deleted func()) error
}

// ErrNoEvents says that the kernel tells nothing of the tables: those of iptables-legacy.
var ErrNoEvents = errors.New("no change notifications for iptables-legacy")

// The chains.
const (
	hint     = "KUBE-IPTABLES-HINT" // in mangle: whoever finds it uses the iptables that sees it
	firewall = "KUBE-FIREWALL"
)

// step is a chain or a rule that is to be there. Chains have no rule. A rule in a chain of the
// kernel comes first.
type step struct {
	program, table, chain string
	rule                  []string
}

// steps are what is to be there, in the order in which it can be made. The rule drops packets to
// loopback addresses that come from elsewhere, but for answers and what was translated
// (CVE-2020-8558): kube-proxy has the kernel route such packets (route_localnet), which IPv6 has
// not.
var steps = []step{
	{"iptables", "mangle", hint, nil},
	{"iptables", "filter", firewall, nil},
	{"iptables", "filter", firewall, []string{
		"!", "-s", "127.0.0.0/8", "-d", "127.0.0.0/8", "-m", "comment", "--comment", "block incoming localnet connections",
		"-m", "conntrack", "!", "--ctstate", "RELATED,ESTABLISHED,DNAT", "-j", "DROP",
	}},
	{"iptables", "filter", "OUTPUT", []string{"-j", firewall}},
	{"iptables", "filter", "INPUT", []string{"-j", firewall}},
	{"ip6tables", "mangle", hint, nil},
}

// names are those whose deletion may concern the steps.
var names = []string{hint, firewall, "INPUT", "OUTPUT"}

// Times between looks at the tables.
const (
	// settleTime is the pause after a deletion: a program that loads all its rules again deletes
	// first.
	settleTime = time.Second
	// period is how often tables are looked at that could not be changed, or of whose changes
	// nobody tells; the kubelet's.
	period = time.Minute
)

// Keeper makes the chains, and makes them again when they were deleted.
type Keeper struct {
	Machine Machine
	Log     *slog.Logger
}

// Run keeps the chains until ctx is done. What fails is told once, as long as it stays the same.
func (k *Keeper) Run(ctx context.Context) error {
	deleted := make(chan struct{}, 1)
	following, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- k.Machine.Follow(following, names, func() {
			select {
			case deleted <- struct{}{}:
			default:
			}
		})
	}()
	follows := true
	defer func() {
		stop()
		if follows {
			<-ended
		}
	}()
	said, known := "", false
	for {
		made, err := k.ensure(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if len(made) > 0 && known {
			k.Log.Warn("chains of iptables were missing, and were made", "chains", made)
		}
		said, known = k.report(err, said), true
		var again <-chan time.Time
		if !follows || said != "" {
			again = time.After(period)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-ended:
			if follows = false; !errors.Is(err, ErrNoEvents) {
				k.Log.Warn("Cannot watch iptables, checking its tables once a minute", "error", err)
			}
		case <-again:
		case <-deleted:
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(settleTime):
			}
		}
	}
}

// report logs what failed, unless it was said, and returns what is said now.
func (k *Keeper) report(err error, said string) string {
	if err == nil {
		return ""
	}
	if err.Error() != said {
		k.Log.Warn("makeIPTablesUtilChains: chains that other programs look for are not in iptables; install iptables, or set makeIPTablesUtilChains: false",
			"error", err)
	}
	return err.Error()
}

// ensure makes what is missing, and returns the chains in which that was.
func (k *Keeper) ensure(ctx context.Context) (made []string, err error) {
	var errs []error
	for _, s := range steps {
		isNew, err := k.ensureStep(ctx, s)
		switch {
		case errors.Is(err, exec.ErrNotFound) && len(errs) > 0 && errors.Is(errs[0], exec.ErrNotFound):
			continue // said once
		case err != nil:
			errs = append(errs, err)
		case isNew && !slices.Contains(made, s.chain):
			made = append(made, s.chain)
		}
	}
	return made, errors.Join(errs...)
}

func (k *Keeper) ensureStep(ctx context.Context, s step) (isNew bool, err error) {
	run := func(verb string) error {
		out, err := k.Machine.Run(ctx, s.program, slices.Concat([]string{"-w", "5", "-t", s.table, verb, s.chain}, s.rule)...)
		if err != nil && !errors.Is(err, exec.ErrNotFound) {
			err = fmt.Errorf("%s -t %s %s %s: %w: %s", s.program, s.table, verb, s.chain, err, strings.TrimSpace(out))
		}
		return err
	}
	if s.rule == nil {
		err := run("-N")
		if err != nil && strings.Contains(err.Error(), "already exists") {
			return false, nil
		}
		return err == nil, err
	}
	if run("-C") == nil {
		return false, nil
	}
	if s.chain == firewall {
		err = run("-A")
	} else { // before what others end the chain with
		err = run("-I")
	}
	return err == nil, err
}

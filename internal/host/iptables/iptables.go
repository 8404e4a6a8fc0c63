// Package iptables maintains the iptables chains that other programs expect of a kubelet: the chain
// KUBE-IPTABLES-HINT, and the rule of KUBE-FIREWALL against martian packets (KEP-3178).
//
// Owns: these two chains, and the jumps to the latter.
// Reads: the kernel's notifications of nftables (group NFNLGRP_NFTABLES of NETLINK_NETFILTER).
// Never: changes other chains or rules, removes its own: other programs rely on them while the
// agent is stopped.
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

// Machine runs iptables on this machine, or is a fake in tests.
type Machine interface {
	// Run runs iptables or ip6tables. The error wraps exec.ErrNotFound if the program does not
	// exist.
	Run(ctx context.Context, program string, args ...string) (out string, err error)
	// Follow calls deleted each time that chains or rules with these names, or whole tables, may
	// have been deleted, until ctx is done. The error wraps ErrNoEvents if the kernel sends no
	// notifications.
	Follow(ctx context.Context, names []string, deleted func()) error
}

// ErrNoEvents means that the kernel sends no notifications of the tables, as with iptables-legacy.
var ErrNoEvents = errors.New("no change notifications for iptables-legacy")

// Names of the chains.
const (
	hint     = "KUBE-IPTABLES-HINT" // in mangle: shows other programs which iptables variant to use
	firewall = "KUBE-FIREWALL"
)

// step is a required chain or rule. Chains have no rule. A rule in a built-in chain is inserted
// first.
type step struct {
	program, table, chain string
	rule                  []string
}

// steps are the required chains and rules, in order of creation. The rule drops packets to loopback
// addresses from other hosts, except replies and translated packets (CVE-2020-8558): kube-proxy
// lets the kernel route such packets (route_localnet). IPv6 has no such routing.
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

// names are the chains whose deletion may affect the steps.
var names = []string{hint, firewall, "INPUT", "OUTPUT"}

// Intervals between checks of the tables.
const (
	// settleTime is the delay after a deletion: a program that reloads all its rules deletes them
	// first.
	settleTime = time.Second
	// period is the check interval after a failure, or without notifications; it is the kubelet's.
	period = time.Minute
)

// Keeper creates the chains, and recreates them when they are deleted.
type Keeper struct {
	Machine Machine
	Log     *slog.Logger
}

// Run maintains the chains until ctx is done. It logs a failure once, until it changes.
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
	lastLogged, known := "", false
	for {
		made, err := k.ensure(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if len(made) > 0 && known {
			k.Log.Warn("chains of iptables were missing, and were made", "chains", made)
		}
		lastLogged, known = k.report(err, lastLogged), true
		var again <-chan time.Time
		if !follows || lastLogged != "" {
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

// report logs a new failure, and returns its text.
func (k *Keeper) report(err error, lastLogged string) string {
	if err == nil {
		return ""
	}
	if err.Error() != lastLogged {
		k.Log.Warn("makeIPTablesUtilChains: chains that other programs look for are not in iptables; install iptables, or set makeIPTablesUtilChains: false",
			"error", err)
	}
	return err.Error()
}

// ensure creates missing chains and rules, and returns the affected chains.
func (k *Keeper) ensure(ctx context.Context) (made []string, err error) {
	var errs []error
	for _, s := range steps {
		isNew, err := k.ensureStep(ctx, s)
		switch {
		case errors.Is(err, exec.ErrNotFound) && len(errs) > 0 && errors.Is(errs[0], exec.ErrNotFound):
			continue // report it once
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
	} else { // before a final rule of another program
		err = run("-I")
	}
	return err == nil, err
}

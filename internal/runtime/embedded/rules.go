package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

// The reference plugins, of which pods made by an earlier release still have their network, make
// rules for each pod: a plugin that outlives its containerd makes them all the same, and without
// the namespace of its sandbox, its DEL leaves them. Each rule of nftables names its sandbox in its
// comment. Those of iptables are not looked for: only a host without nft has them. What our plugin
// makes is found by its leases (endLeases).

// table is one of nftables that the plugins of all runtimes of the host share.
type table struct{ family, name string }

var (
	masquerades = table{"inet", "cni_plugins_masquerade"} // of bridge; a rule for each address of a sandbox
	hostPorts   = table{"ip", "cni_hostport"}             // of portmap; a comment is the id of the sandbox
	hostPorts6  = table{"ip6", "cni_hostport"}
)

// rule is a rule of nftables in the form of `nft --json` (libnftables-json(5)).
type rule struct {
	Chain   string `json:"chain"`
	Handle  int    `json:"handle"`
	Comment string `json:"comment"`
}

// listRules lists the rules of a table. A table that is not there has none, nor has a host without
// nft.
func listRules(ctx context.Context, t table) ([]rule, error) {
	out, err := runNft(ctx, "--json", "list", "table", t.family, t.name)
	if errors.Is(err, exec.ErrNotFound) || err != nil && strings.Contains(err.Error(), "No such file or directory") {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parseRules(out)
}

func parseRules(out []byte) ([]rule, error) {
	var all struct {
		Nftables []struct {
			Rule *rule `json:"rule"`
		} `json:"nftables"`
	}
	if err := json.Unmarshal(out, &all); err != nil {
		return nil, fmt.Errorf("rules of nftables: %w", err)
	}
	var rules []rule
	for _, o := range all.Nftables {
		if o.Rule != nil {
			rules = append(rules, *o.Rule)
		}
	}
	return rules, nil
}

// masqueraded returns the sandbox that a rule of masquerades is for, if it is of the pods' network:
// the beginning of its id, as much as fits into a comment.
func (r rule) masqueraded(network string) string {
	_, rest, _ := strings.Cut(r.Comment, ", net: ")
	of, rest, _ := strings.Cut(rest, ", if: ")
	_, id, found := strings.Cut(rest, ", id: ")
	if !found || of != network || len(id) < minPrefix {
		return ""
	}
	return id
}

// minPrefix is how much of an id stands for it: more than two ids have in common.
const minPrefix = 32

// computeStrayRules returns the beginnings of the ids of sandboxes for which there are rules, and
// which are not known.
func computeStrayRules(rules []rule, network string, known map[string]bool) map[string]bool {
	stray := map[string]bool{}
	for _, r := range rules {
		if id := r.masqueraded(network); id != "" {
			stray[id] = true
		}
	}
	for id := range known {
		for prefix := range stray {
			if strings.HasPrefix(id, prefix) {
				delete(stray, prefix)
			}
		}
	}
	return stray
}

// removeRules removes the rules for sandboxes, given by the beginnings of their ids.
func removeRules(ctx context.Context, network string, prefixes map[string]bool) error {
	if len(prefixes) == 0 {
		return nil
	}
	ofPort := func(r rule) bool {
		for prefix := range prefixes {
			if strings.HasPrefix(r.Comment, prefix) {
				return true
			}
		}
		return false
	}
	strayOf := map[table]func(rule) bool{
		masquerades: func(r rule) bool { return prefixes[r.masqueraded(network)] },
		hostPorts:   ofPort,
		hostPorts6:  ofPort,
	}
	var errs []error
	for t, isStray := range strayOf {
		rules, err := listRules(ctx, t)
		errs = append(errs, err)
		for _, r := range rules {
			if isStray(r) {
				_, err := runNft(ctx, "delete", "rule", t.family, t.name, r.Chain, "handle", strconv.Itoa(r.Handle))
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// removeAllRules removes the rules for every sandbox of the pods' network.
func removeAllRules(ctx context.Context, network string) error {
	rules, err := listRules(ctx, masquerades)
	if err != nil {
		return err
	}
	return removeRules(ctx, network, computeStrayRules(rules, network, nil))
}

// runNft runs nft and returns what it prints.
func runNft(ctx context.Context, args ...string) ([]byte, error) {
	name, err := findTool("nft")
	if err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, name, args...).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		return nil, fmt.Errorf("nft %s: %w", strings.Join(args, " "), err)
	}
	return out, nil
}

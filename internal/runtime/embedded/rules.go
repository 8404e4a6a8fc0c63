package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"

	"berth/internal/host/preflight"
)

// The reference plugins, which the network of pods of an earlier release still uses, create rules
// per pod: a plugin that outlives its containerd still creates them, and without the sandbox's
// namespace, DEL does not remove them. Each nftables rule has its sandbox in its comment. iptables
// rules are not searched: only hosts without nft have them. Our own plugin's rules are found by its
// leases (endLeases).

// table is an nftables table that the plugins of all runtimes of the host share.
type table struct{ family, name string }

var (
	masquerades = table{"inet", "cni_plugins_masquerade"} // of bridge; one rule per sandbox address
	hostPorts   = table{"ip", "cni_hostport"}             // of portmap; the comment is the sandbox ID
	hostPorts6  = table{"ip6", "cni_hostport"}
)

// rule is an nftables rule as printed by `nft --json` (libnftables-json(5)).
type rule struct {
	Chain   string `json:"chain"`
	Handle  int    `json:"handle"`
	Comment string `json:"comment"`
}

// listRules lists the rules of a table. A missing table has none, nor has a host without nft.
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

// masqueraded returns the sandbox ID prefix of a masquerade rule of the network, as much as fits
// into a comment, else "".
func (r rule) masqueraded(network string) string {
	_, rest, _ := strings.Cut(r.Comment, ", net: ")
	of, rest, _ := strings.Cut(rest, ", if: ")
	_, id, found := strings.Cut(rest, ", id: ")
	if !found || of != network || len(id) < minPrefix {
		return ""
	}
	return id
}

// minPrefix is the minimum length of a unique ID prefix.
const minPrefix = 32

// computeStrayRules returns the sandbox ID prefixes in rules that match no known sandbox.
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

// removeRules removes the rules of sandboxes, given by ID prefix.
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

// removeAllRules removes the rules of every sandbox of the network.
func removeAllRules(ctx context.Context, network string) error {
	rules, err := listRules(ctx, masquerades)
	if err != nil {
		return err
	}
	return removeRules(ctx, network, computeStrayRules(rules, network, nil))
}

// runNft runs nft and returns its output.
func runNft(ctx context.Context, args ...string) ([]byte, error) {
	name, err := preflight.FindTool("nft")
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

package embedded

import (
	"maps"
	"slices"
	"testing"
)

// What nft 1.0.6 prints of the tables of bridge and portmap, but for expressions.
const listedRules = `{"nftables": [{"metainfo": {"version": "1.0.6"}}, {"table": {"family": "inet", "name": "cni_plugins_masquerade", "handle": 1}},
{"chain": {"family": "inet", "table": "cni_plugins_masquerade", "name": "masq_checks", "handle": 1}},
{"rule": {"family": "inet", "table": "cni_plugins_masquerade", "chain": "masq_checks", "handle": 7,
 "comment": "f82df34fec1bb577-57b5c313d49b84dd, net: berth9c8c3e75, if: eth0, id: 689c91407042386f9183ceba27f9d719317118ef95364d39099e54dd87f", "expr": []}},
{"rule": {"family": "inet", "table": "cni_plugins_masquerade", "chain": "masq_checks", "handle": 8,
 "comment": "f82df34fec1bb577-70d3df438e8b6ac6, net: berth9c8c3e75, if: eth0, id: e6f59d33da6ffe42dc485ba024ec2755cc225e20482a333927d258ab1f6", "expr": []}},
{"rule": {"family": "inet", "table": "cni_plugins_masquerade", "chain": "masq_checks", "handle": 9,
 "comment": "0123456789abcdef-70d3df438e8b6ac6, net: cbr0, if: eth0, id: bf43cbba44ba55eb790c1f2a91d48cb0cd52ddb2b1aece38e857639ea7c", "expr": []}},
{"rule": {"family": "inet", "table": "cni_plugins_masquerade", "chain": "postrouting", "handle": 5, "expr": []}},
{"rule": {"family": "inet", "table": "cni_plugins_masquerade", "chain": "masq_checks", "handle": 10,
 "comment": "an administrator's, net: berth9c8c3e75, if: eth0, id: e", "expr": []}}]}`

// Rules are strays whose sandbox is not known, and which are of the pods' own network: other
// runtimes and people have rules in the same table.
func TestComputeStrayRules(t *testing.T) {
	rules, err := parseRules([]byte(listedRules))
	if err != nil || len(rules) != 5 || rules[1].Handle != 8 || rules[1].Chain != "masq_checks" {
		t.Fatalf("%d rules, %+v, %v", len(rules), rules, err)
	}
	const first = "689c91407042386f9183ceba27f9d719317118ef95364d39099e54dd87f"
	const second = "e6f59d33da6ffe42dc485ba024ec2755cc225e20482a333927d258ab1f6"
	for name, tc := range map[string]struct {
		network string
		known   map[string]bool
		want    []string
	}{
		"all known":       {"berth9c8c3e75", map[string]bool{first + "0a1b2": true, second + "0a1b2": true}, nil},
		"one known":       {"berth9c8c3e75", map[string]bool{first + "0a1b2": true, "00": true}, []string{second}},
		"none known":      {"berth9c8c3e75", nil, []string{first, second}},
		"another network": {"berth11111111", nil, nil},
	} {
		got := slices.Sorted(maps.Keys(computeStrayRules(rules, tc.network, tc.known)))
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %v, want %v", name, got, tc.want)
		}
	}
	if _, err := parseRules([]byte("Error: syntax")); err == nil {
		t.Error("what is no JSON is taken")
	}
}

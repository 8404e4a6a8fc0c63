package cni

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestIntervals(t *testing.T) {
	f := family{size: 4}
	parse := func(text string) (out []netip.Prefix) {
		for _, p := range strings.Fields(text) {
			out = append(out, netip.MustParsePrefix(p))
		}
		return out
	}
	for _, tc := range []struct {
		ranges, want string // as first-last
		has, lacks   string // ranges that a set with these covers, and does not
	}{
		{},
		{"10.0.0.0/24", "10.0.0.0-10.0.0.255", "10.0.0.0/24 10.0.0.0/32 10.0.0.255/32 10.0.0.8/29", "9.255.255.255/32 10.0.1.0/32 10.0.0.0/23 10.0.0.0/8"},
		{"10.0.0.3/32 10.0.0.1/32 10.0.0.2/32", "10.0.0.1-10.0.0.3", "10.0.0.2/31", "10.0.0.0/31 10.0.0.4/32"},
		{"10.0.0.9/32 10.0.0.0/29 10.0.0.2/32", "10.0.0.0-10.0.0.7 10.0.0.9-10.0.0.9", "10.0.0.9/32 10.0.0.0/29", "10.0.0.8/32 10.0.0.8/31 10.0.0.0/28"},
		{"10.0.0.0/24 10.0.1.0/24 fd00::/64", "10.0.0.0-10.0.1.255", "10.0.0.0/23", "10.0.2.0/24"},
		{"255.255.255.0/24 0.0.0.0/32", "0.0.0.0-0.0.0.0 255.255.255.0-255.255.255.255", "255.255.255.255/32 0.0.0.0/32", "0.0.0.1/32 254.0.0.0/8"},
	} {
		all := f.intervals(parse(tc.ranges))
		var got []string
		for _, i := range all {
			got = append(got, i.first.String()+"-"+i.last.String())
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%s: %s, want %s", tc.ranges, got, tc.want)
		}
		have := elements(all)
		for _, order := range []string{"ascending", "descending"} {
			for _, p := range parse(tc.has) {
				if !covers(have, f.intervals([]netip.Prefix{p})) {
					t.Errorf("%s, %s: %s is missing", tc.ranges, order, p)
				}
			}
			for _, p := range parse(tc.lacks) {
				if covers(have, f.intervals([]netip.Prefix{p})) {
					t.Errorf("%s, %s: %s is there", tc.ranges, order, p)
				}
			}
			slices.Reverse(have)
		}
	}
}

package crispec

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseResolvConf(t *testing.T) {
	for _, tc := range []struct {
		name, content string
		want          Resolver
	}{
		{"empty", "", Resolver{}},
		{"usual", "nameserver 10.0.0.2\nnameserver fd00::2\nsearch a.example b.example\noptions ndots:2 edns0\n", Resolver{
			[]string{"10.0.0.2", "fd00::2"},
			[]string{"a.example", "b.example"},
			[]string{"ndots:2", "edns0"},
		}},
		{"systemd-resolved's search for nothing", "nameserver 127.0.0.53\noptions edns0 trust-ad\nsearch .\n", Resolver{
			Servers: []string{"127.0.0.53"}, Options: []string{"edns0", "trust-ad"},
		}},
		{"dots at the end", "search a.example. . b.example", Resolver{Searches: []string{"a.example", "b.example"}}},
		{"the last search holds", "search a\nsearch b c\n", Resolver{Searches: []string{"b", "c"}}},
		{"the last search holds even if empty", "search a\nsearch\n", Resolver{}},
		{"domain", "domain d.example\n", Resolver{Searches: []string{"d.example"}}},
		{"search after domain", "domain d\nsearch s\n", Resolver{Searches: []string{"s"}}},
		{"comments", "# nameserver 1.1.1.1\n;search x\nnameserver 2.2.2.2 # main\nsearch a ;b\n", Resolver{Servers: []string{"2.2.2.2"}, Searches: []string{"a"}}},
		{"tabs, carriage returns, blanks before", "\tnameserver\t1.1.1.1\r\n  search a\r\n", Resolver{Servers: []string{"1.1.1.1"}, Searches: []string{"a"}}},
		{"what is no address", "nameserver\nnameserver dns.example\nnameserver 300.1.1.1\nnameserver 1.1.1.1", Resolver{Servers: []string{"1.1.1.1"}}},
		{"link-local with a zone", "nameserver fe80::1%eth0", Resolver{Servers: []string{"fe80::1%eth0"}}},
		{"several options lines", "options ndots:1 rotate\noptions ndots:3 timeout:1", Resolver{Options: []string{"ndots:3", "rotate", "timeout:1"}}},
		{"unknown keys", "sortlist 1.2.3.0\nlookup file bind\n\x00\n", Resolver{}},
	} {
		if d := cmp.Diff(tc.want, ParseResolvConf([]byte(tc.content))); d != "" {
			t.Errorf("%s: %s", tc.name, d)
		}
	}
}

func FuzzParseResolvConf(f *testing.F) {
	f.Add([]byte("nameserver 1.1.1.1\nsearch a. b\noptions x:1\n"))
	f.Add([]byte("search .\n#\n; \noptions"))
	f.Fuzz(func(t *testing.T, content []byte) {
		r := ParseResolvConf(content)
		for _, s := range slices.Concat(r.Servers, r.Searches, r.Options) {
			if s == "" || strings.ContainsAny(s, " \t\n") {
				t.Errorf("%q is no word", s)
			}
		}
	})
}

func TestIsLoopback(t *testing.T) {
	for _, tc := range []struct {
		servers string
		want    bool
	}{
		{"", false},
		{"127.0.0.53", true},
		{"127.0.0.1 ::1", true},
		{"127.0.0.1 10.0.0.1", false},
	} {
		if got := (Resolver{Servers: strings.Fields(tc.servers)}).IsLoopback(); got != tc.want {
			t.Errorf("%s: got %v", tc.servers, got)
		}
	}
}

func TestLoopbackResolver(t *testing.T) {
	for _, tc := range []struct{ ips, want string }{
		{"", "127.0.0.1"},
		{"192.0.2.1", "127.0.0.1"},
		{"2001:db8::1", "::1"},
		{"2001:db8::1 192.0.2.1", "::1 127.0.0.1"},
	} {
		got := LoopbackResolver(strings.Fields(tc.ips))
		if d := cmp.Diff(Resolver{Servers: strings.Fields(tc.want), Searches: []string{"."}}, got); d != "" {
			t.Errorf("%s: %s", tc.ips, d)
		}
	}
}

func TestOnePerFamily(t *testing.T) {
	for _, tc := range []struct{ ips, node, want string }{
		{"", "192.0.2.1", ""},
		{"10.0.0.1", "2001:db8::1", "10.0.0.1"},
		{"10.0.0.1 fd00::1", "192.0.2.1", "10.0.0.1 fd00::1"},
		{"10.0.0.1 fd00::1", "2001:db8::1 192.0.2.1", "fd00::1 10.0.0.1"},
		{"10.0.0.1 10.0.0.2 fd00::1 fd00::2", "", "10.0.0.1 fd00::1"},
	} {
		if got := strings.Join(OnePerFamily(strings.Fields(tc.ips), strings.Fields(tc.node)), " "); got != tc.want {
			t.Errorf("%s on %s: got %s, want %s", tc.ips, tc.node, got, tc.want)
		}
	}
}

// The limits are exact: what just fits stays, and is not warned of.
func TestFitSearches(t *testing.T) {
	domains := func(n, length int) []string {
		out := make([]string, n)
		for i := range out {
			out[i] = strings.Repeat("x", length)
		}
		return out
	}
	for _, tc := range []struct {
		name     string
		in       []string
		fit      int
		exceeded bool
	}{
		{"none", nil, 0, false},
		{"as many as may be", domains(32, 5), 32, false},
		{"one too many", domains(33, 5), 32, true},
		{"as long as may be", append(domains(15, 127), strings.Repeat("x", 128)), 16, false}, // 15 × 127 + 128 + 15 blanks = 2048
		{"a character too long", append(domains(15, 127), strings.Repeat("x", 129)), 15, true},
		{"the longest domain", domains(1, 253), 1, false},
		{"what is no domain", append(domains(1, 254), "a"), 1, true},
	} {
		fit, exceeded := fitSearches(tc.in)
		if len(fit) != tc.fit || exceeded != tc.exceeded || len(strings.Join(fit, " ")) > maxSearchLine {
			t.Errorf("%s: got %d, %v, want %d, %v", tc.name, len(fit), exceeded, tc.fit, tc.exceeded)
		}
	}
}

// What the node's resolver has too much is told once, by the limits that a pod of a cluster has.
func TestExplainExcess(t *testing.T) {
	domains := func(n, length int) []string { return slices.Repeat([]string{strings.Repeat("x", length)}, n) }
	cluster := DNS{InCluster: true, Domain: "cluster.local"}
	for _, tc := range []struct {
		name     string
		searches []string
		dns      DNS
		want     string
	}{
		{"nothing", nil, cluster, ""},
		{"as many as go with those of the cluster", domains(29, 5), cluster, ""},
		{"one more", domains(30, 5), cluster, "Resolv.conf file '/r' contains search line consisting of more than 29 domains!"},
		{"outside of a cluster", domains(32, 5), DNS{}, ""},
		{"too many outside of a cluster", domains(33, 5), DNS{}, "Resolv.conf file '/r' contains search line consisting of more than 32 domains!"},
		{"too long", domains(20, 120), cluster, "Resolv.conf file '/r' contains search line which length is more than allowed 2048 chars!"},
	} {
		if got := (Resolver{Searches: tc.searches}).ExplainExcess("/r", tc.dns); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.want)
		}
	}
}

package nodelogs

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseQuery(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		query string
		want  Query
		wrong string // part of the error
	}{
		{"query=kubelet", Query{Services: []string{"kubelet"}}, ""},
		{"query=kubelet&query=containerd.service", Query{Services: []string{"kubelet", "containerd.service"}}, ""},
		{"query=/syslog&tailLines=7&pattern=a.b", Query{File: "/syslog", TailLines: new(7), Pattern: "a.b"}, ""},
		{"query=x&sinceTime=2026-01-02T03:04:05Z&untilTime=2026-01-02T03:04:05Z&boot=-1", Query{Services: []string{"x"}, Since: at, Until: at, Boot: new(-1)}, ""},
		{"query=x&sinceTime=yesterday", Query{}, `sinceTime: "yesterday" is not a time`},
		{"query=x&untilTime=2026-01-02", Query{}, "untilTime: "},
		{"query=x&boot=current", Query{}, `boot: "current" is not a whole number`},
		{"query=x&tailLines=1e3", Query{}, `tailLines: "1e3" is not a whole number`},
		{"query=/a&query=/b", Query{}, "one file at a time"},
	} {
		values, err := url.ParseQuery(c.query)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseQuery(values)
		if c.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%s: error %v, want %q", c.query, err, c.wrong)
			}
			continue
		}
		if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", c.query, err, diff)
		}
	}
}

func TestValidate(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	service := []string{"kubelet"}
	for _, c := range []struct {
		name  string
		query Query
		wrong string // part of the error; "": none
	}{
		{"a service", Query{Services: service, Since: at, Until: at, Boot: new(0), Pattern: "(?=x)", TailLines: new(100_000)}, ""},
		{"four services", Query{Services: []string{"a", "b@1.service", "C_d", "e:f"}}, ""},
		{"a file", Query{File: "/pods/x/0.log", Pattern: "x", TailLines: new(0)}, ""},
		{"nothing", Query{}, "names no service and no file"},
		{"an empty name", Query{Services: []string{""}}, "is no name of a service"},
		{"five services", Query{Services: []string{"a", "b", "c", "d", "e"}}, "at most 4"},
		{"a service and a file", Query{Services: service, File: "/x"}, "together"},
		{"a name with a blank", Query{Services: []string{"a b"}}, "is no name of a service"},
		{"a command", Query{Services: []string{"a;reboot"}}, "is no name of a service"},
		{"a glob", Query{Services: []string{"*"}}, "is no name of a service"},
		{"a line end", Query{Services: []string{"a\n"}}, "is no name of a service"},
		{"the parent folder", Query{Services: []string{".."}}, "is no name of a service"},
		{"a long name", Query{Services: []string{strings.Repeat("a", 257)}}, "at most 256"},
		{"a file elsewhere", Query{File: "/../shadow"}, "not below the log folder"},
		{"a file with NUL", Query{File: "/a\x00"}, "not below the log folder"},
		{"no file", Query{File: "/"}, "not below the log folder"},
		{"a file since", Query{File: "/a", Since: at}, "no time that could be compared"},
		{"a file of a boot", Query{File: "/a", Boot: new(0)}, "no time that could be compared"},
		{"until before since", Query{Services: service, Since: at, Until: at.Add(-time.Second)}, "is before sinceTime"},
		{"a boot to come", Query{Services: service, Boot: new(1)}, "boot: 1"},
		{"less than no line", Query{Services: service, TailLines: new(-1)}, "tailLines: -1"},
		{"too many lines", Query{Services: service, TailLines: new(100_001)}, "tailLines: 100001"},
		{"a long pattern", Query{Services: service, Pattern: strings.Repeat("a", 1025)}, "pattern: "},
		{"a pattern with NUL", Query{Services: service, Pattern: "a\x00"}, "pattern: "},
	} {
		switch err := c.query.Validate(); {
		case c.wrong == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)):
			t.Errorf("%s: error %v, want %q", c.name, err, c.wrong)
		}
	}
}

// No query that passes makes an argument of journalctl that is an option of its own, or more than
// one.
func FuzzQuery(f *testing.F) {
	for _, q := range []string{
		"query=kubelet", "query=--file=/etc/shadow", "query=-M", "query=a&query=b&query=c&query=d", "query=/syslog&tailLines=1", "query=/..%2f..%2fetc/shadow",
		"query=x&pattern=--output%3Dexport", "query=x&pattern=%00", "query=x&boot=-9223372036854775808", "query=x&tailLines=-1",
		"query=x&sinceTime=0000-01-01T00:00:00Z", "query=x&untilTime=9999-12-31T23:59:59.999999999%2B23:59", "query=%ff", "query=", "query", "%zz",
	} {
		f.Add(q)
	}
	options := []string{"--unit=", "--since=", "--until=", "--boot=", "--case-sensitive=", "--grep=", "--lines="}
	f.Fuzz(func(t *testing.T, raw string) {
		values, _ := url.ParseQuery(raw) // as the server does, which takes what it understands
		q, err := ParseQuery(values)
		if err != nil || q.Validate() != nil {
			return
		}
		for _, a := range computeArguments(q, q.Services)[4:] {
			known := false
			for _, o := range options {
				known = known || strings.HasPrefix(a, o)
			}
			if !known || strings.ContainsRune(a, 0) {
				t.Errorf("%q: argument %q", raw, a)
			}
		}
	})
}

//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/diff"
)

// varying is what differs between any two servers, and two runs of one: by pattern, what stands for
// it.
var varying = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "UID"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)`), "TIME"},
	{regexp.MustCompile(`[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d [+-]\d{4}`), "TIME"},
	{regexp.MustCompile(`(?i)(resource[_ ]?version"?[:=] *"?)\d+`), "${1}REVISION"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ \+0000`), "TIME"},
	// client-go of a kubectl that ends says so when it had just asked again.
	{regexp.MustCompile(`(?m)^[EWI]\d{4} .* reflector\.go:\d+\] "Warning: watch ended with error".*\n`), ""},
	{regexp.MustCompile(`\b([EWI])\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ (\w+\.go):\d+`), "$1 $2"},
	{regexp.MustCompile(`\b(LIVE|MERGED|kubectl-edit)-\d+`), "$1-NAME"},
	{regexp.MustCompile(`\b(made|debugger|node-debugger-[a-z0-9.-]+)-[a-z0-9]{5}\b`), "$1-NAME"},
	{regexp.MustCompile(`\.[0-9a-f]{16}\b`), ".NAME"},
	{regexp.MustCompile(`[0-9a-f]{64}`), "HASH"},
	{regexp.MustCompile(`kube-api-access-[a-z0-9]{5}`), "kube-api-access-NAME"},
	{regexp.MustCompile(`eyJ[\w-]+\.[\w-]+\.[\w-]+`), "TOKEN"},
	{regexp.MustCompile(`\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b(:\d+)?`), "ADDRESS"},
	{regexp.MustCompile(`\[?::1\]?:\d+`), "ADDRESS"},
	// A kube-apiserver may know a moment later than the node which pod the node has a token for.
	{regexp.MustCompile(`(?m)^.*FailedMount.* is forbidden: User "system:node:.*\n`), ""},
	// Ages stand in columns of their own, or are said.
	{regexp.MustCompile(`(?m)((?:^|  )\s*)(\d+[dhms])+(  |\s*$)`), "${1}AGE${3}"},
	{regexp.MustCompile(`(?m)((?:^|  )\s*)(?:\d+[dhms])+ \(x\d+ over (?:\d+[dhms])+\)`), "${1}AGE"},
	{regexp.MustCompile(`\((\d+[dhms])+ ago\)`), "(AGE ago)"},
	{regexp.MustCompile(`in [\d.]+m?s \([\d.]+m?s including waiting\)`), "in SPAN"},
	{regexp.MustCompile(`(?m)(\S)[ \t]{2,}`), "$1  "},
	{regexp.MustCompile(`(?m)[ \t]+$`), ""},
}

func normal(text string) string {
	for _, v := range varying {
		text = v.pattern.ReplaceAllString(text, v.with)
	}
	return text
}

// sessionDifference is a difference that is meant: of the commands that are like a pattern, the
// lines that are like another, with - before what kube-apiserver's session shows and + before what
// the local API's shows.
type sessionDifference struct {
	command, line, reason string
	seen                  bool
}

// wantSameSessions checks that two servers have said the same.
func wantSameSessions(t *testing.T, cluster, local map[string][]said) {
	for _, script := range slices.Sorted(maps.Keys(cluster)) {
		a, b := cluster[script], local[script]
		if len(a) != len(b) {
			t.Errorf("%s: %d commands ran in the cluster, and %d at the local API", script, len(a), len(b))
		}
		for i := range min(len(a), len(b)) {
			wantSame(t, script, a[i], b[i])
		}
	}
}

func wantSame(t *testing.T, script string, a, b said) {
	if a.command == b.command && a.answer == b.answer {
		return
	}
	text := func(s said) []byte {
		return fmt.Appendf(nil, "%s\n%s--- standard error, and exit code %d\n%s", s.command, ended(s.out), s.code, ended(s.errOut))
	}
	all := string(diff.Diff("cluster", text(a), "local", text(b)))
	for _, line := range strings.Split(all, "\n") {
		changed := strings.HasPrefix(line, "-") || strings.HasPrefix(line, "+")
		if !changed || strings.HasPrefix(line, "--- cluster") || strings.HasPrefix(line, "+++ local") || isMeant(script+": "+a.command, line) {
			continue
		}
		t.Errorf("%s: %s\nis not the same, nor listed:\n%s\n%s", script, a.command, line, all)
		return
	}
}

// ended is a text whose last line has an end.
func ended(text string) string {
	if text == "" || strings.HasSuffix(text, "\n") {
		return text
	}
	return text + "\\\n"
}

func isMeant(command, line string) bool {
	for i := range sessionDifferences {
		d := &sessionDifferences[i]
		if regexp.MustCompile(d.command).MatchString(command) && regexp.MustCompile(d.line).MatchString(line) {
			d.seen = true
			return true
		}
	}
	return false
}

// wantAllNeeded checks that there is no difference listed that is not there.
func wantAllNeeded(t *testing.T) {
	for _, d := range sessionDifferences {
		if !d.seen {
			t.Errorf("no session differs any more in what is listed: commands like %s, lines like %s: %s", d.command, d.line, d.reason)
		}
	}
}

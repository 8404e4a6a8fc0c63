package validation

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// docs/validation.md lists where Berth and the API server differ on purpose, and why. This file
// reads the tables of the page: a difference that is not in them fails the test, and so does an
// entry that matches no mutant any more.
const differencesPage = "../../../docs/validation.md"

// difference is a row of a table. Faults are written as "field: what is wrong"; a field may lack
// its beginning, a fault its end, and * is any index or key.
type difference struct {
	fault    string
	pattern  *regexp.Regexp
	servers  string // what the API server says instead, for ReplaceAllString
	mentions int
}

// differences are the tables by the headings above them.
type differences struct{ named, refused, accepted []*difference }

func readDifferences(t *testing.T) *differences {
	t.Helper()
	page, err := os.ReadFile(differencesPage)
	if err != nil {
		t.Fatal(err)
	}
	var d differences
	tables := map[string]*[]*difference{
		"## Different field names": &d.named, "## Rejected only by Berth": &d.refused, "## Rejected only by the API server": &d.accepted,
	}
	var table *[]*difference
	for line := range strings.Lines(string(page)) {
		if strings.HasPrefix(line, "## ") {
			table = tables[strings.TrimSpace(line)]
		}
		cells := strings.Split(line, "|")
		if table == nil || len(cells) < 4 || !strings.Contains(cells[1], "`") {
			continue
		}
		fault, servers := strings.Trim(cells[1], " `"), strings.Trim(cells[2], " `")
		*table = append(*table, &difference{fault: fault, pattern: compileFault(fault), servers: "${1}" + groups(servers) + "${end}"})
	}
	return &d
}

// compileFault makes the pattern of a fault: the first group is what stands before it, the group
// "end" what follows.
func compileFault(fault string) *regexp.Regexp {
	quoted := strings.ReplaceAll(regexp.QuoteMeta(fault), `\*`, `([^\]]*)`)
	return regexp.MustCompile(`^(|.*\.)` + quoted + `(?P<end>|[.\[:].*)$`)
}

// groups replaces each * by the group that the same * of the fault made.
func groups(servers string) string {
	for group := '2'; strings.Contains(servers, "*"); group++ {
		servers = strings.Replace(servers, "*", "${"+string(group)+"}", 1)
	}
	return servers
}

// reconcile returns both sets of faults without the differences that are listed.
func (d *differences) reconcile(ours, servers []string) (_, _ []string) {
	ours = slices.Clone(ours)
	for i, fault := range ours {
		if !slices.Contains(servers, fault) {
			ours[i] = d.rename(fault, servers)
		}
	}
	left := drop(d.refused, ours, servers)
	return sorted(left), sorted(drop(d.accepted, servers, ours))
}

// rename returns the fault as the server names it, or as it is if the server does not have it under
// that name either.
func (d *differences) rename(fault string, servers []string) string {
	renamed := fault
	var used []*difference
	for _, n := range d.named {
		if n.pattern.MatchString(renamed) {
			renamed = n.pattern.ReplaceAllString(renamed, n.servers)
			used = append(used, n)
		}
	}
	if !slices.Contains(servers, renamed) {
		return fault
	}
	for _, n := range used {
		n.mentions++
	}
	return renamed
}

// drop returns the faults without those that are listed and that others lacks.
func drop(listed []*difference, faults, others []string) []string {
	return slices.DeleteFunc(slices.Clone(faults), func(fault string) bool {
		if slices.Contains(others, fault) {
			return false
		}
		for _, l := range listed {
			if l.pattern.MatchString(fault) {
				l.mentions++
				return true
			}
		}
		return false
	})
}

// sorted returns the set in order.
func sorted(faults []string) []string {
	slices.Sort(faults)
	return slices.Compact(faults)
}

// checkMentions fails the test for rows that no mutant has needed.
func (d *differences) checkMentions(t *testing.T) {
	t.Helper()
	for _, row := range slices.Concat(d.named, d.refused, d.accepted) {
		if row.mentions == 0 {
			t.Errorf("%s lists %q, but there is no such difference: remove the row", differencesPage, row.fault)
		}
	}
}

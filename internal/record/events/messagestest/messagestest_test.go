package messagestest

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/messages.md")

func TestForms(t *testing.T) {
	for _, tt := range []struct {
		form, message string
		want          bool
	}{
		{"Container created", "Container created", true},
		{"Container created", "Container created.", false},
		{"Container created", "container created", false},
		{"Pulling image %q", `Pulling image "a\"b"`, true},
		{"Pulling image %q", "Pulling image a", false},
		{"Back-off in pod %s", "Back-off in pod ", false},
		{"freed %d bytes", "freed 12 bytes", true},
		{"freed %d bytes", "freed few bytes", false},
		{"%d%% of it", "12% of it", true},
		{"…options", "failed to get options", true},
		{"…options", "failed to get options: why", false},
		{"…options…", "failed to get options: why", true},
		{"Error: %s", "Error: one\ntwo", true},
	} {
		if got := compile(tt.form).MatchString(tt.message); got != tt.want {
			t.Errorf("%q, %q: %v", tt.form, tt.message, got)
		}
	}
}

// A message that differs by a letter does not count as its row.
func TestUnseen(t *testing.T) {
	rows := []Row{
		{Where: "event", Reason: "Killing", Form: "Stopping container %s", Package: "a"},
		{Where: "grpc", Reason: "-", Form: "no", Package: "a"},
		{Where: "event", Reason: "Other", Form: "x", Package: "b"},
	}
	for i := range rows {
		rows[i].form = compile(rows[i].Form)
	}
	for _, tt := range []struct {
		records []record
		want    int
	}{
		{nil, 2},
		{[]record{{"event", "Killing", "Stopping container a"}}, 1},
		{[]record{{"event", "Killing", "Stopping  container a"}}, 2},
		{[]record{{"event", "Killed", "Stopping container a"}}, 2},
		{[]record{{"http", "Killing", "Stopping container a"}}, 2},
		{[]record{{"event", "Killing", "Stopping container a"}, {"grpc", "5", "no"}}, 0},
	} {
		records := map[record]bool{}
		for _, r := range tt.records {
			records[r] = true
		}
		if got := unseen(rows, "a", records); len(got) != tt.want {
			t.Errorf("%v: %d rows, want %d: %v", tt.records, len(got), tt.want, got)
		}
	}
}

func TestRows(t *testing.T) {
	rows, err := Rows()
	if err != nil || len(rows) == 0 {
		t.Fatal(len(rows), err)
	}
	for _, r := range rows {
		switch r.Where {
		case "event", "condition", "status", "waiting", "grpc", "http", "probe", "file", "lock", "error":
		default:
			t.Errorf("%q: the place %q is none", r.Form, r.Where)
		}
		if r.Source == "" || r.Form == "" {
			t.Errorf("%+v: a cell is empty", r)
		}
		// Without it, nothing would require the message.
		text, err := os.ReadFile(filepath.Join("../../../..", r.Package, "messages_test.go"))
		if err != nil || !strings.Contains(string(text), `messagestest.Main(m, "`+r.Package+`")`) {
			t.Errorf("%q: the tests of %s do not end by messagestest.Main: %v", r.Form, r.Package, err)
		}
	}
}

// A message that this agent has is not in the list of those that it has not.
func TestAbsent(t *testing.T) {
	rows, err := Rows()
	if err != nil {
		t.Fatal(err)
	}
	has := map[string]bool{}
	for _, r := range rows {
		has[r.Where+"|"+r.Reason+"|"+r.Form] = true
	}
	absent, err := Absent()
	if err != nil || len(absent) == 0 {
		t.Fatal(len(absent), err)
	}
	for _, r := range absent {
		if has[r.Where+"|"+r.Reason+"|"+r.Form] || r.Why == "" || r.Source == "" {
			t.Errorf("%+v: a test produces it, or a cell is empty", r)
		}
	}
	// What has no text of its own is looked for by its reason.
	words := map[string]AbsentRow{}
	for _, r := range absent {
		word := longest(r.Form)
		if word == "" {
			_, word, _ = strings.Cut("/"+r.Reason, "/")
			word = word[strings.LastIndex(word, "/")+1:]
		}
		words[word] = r
	}
	for _, folder := range []string{"agent", "cmd", "internal"} {
		err := filepath.WalkDir(filepath.Join("../../../..", folder), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for word, r := range words {
				if strings.Contains(string(text), `"`+word+`"`) && r.Form == "…" || len(word) > 20 && strings.Contains(string(text), word) && !known[word] {
					t.Errorf("%s has %q: give it a row of messages.txt in place of that of absent.txt", path, word)
				}
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// known are texts that are parts of longer messages, which are there.
var known = map[string]bool{" already present on machine": true}

// longest returns the longest text of the form between its verbs.
func longest(form string) string {
	out := ""
	for _, part := range regexp.MustCompile(`%[sdqv]|…`).Split(form, -1) {
		if len(part) > len(out) {
			out = part
		}
	}
	return out
}

// docs/messages.md tells users of both lists.
func TestDoc(t *testing.T) {
	rows, err := Rows()
	if err != nil {
		t.Fatal(err)
	}
	absent, err := Absent()
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	packages := map[string]bool{}
	for _, r := range rows {
		count[r.Where]++
		packages[r.Package] = true
	}
	var b strings.Builder
	b.WriteString("# Kubelet messages that clients match\n\n<!-- Generated by go test ./internal/record/events/messagestest -run TestDoc -update. -->\n\n")
	fmt.Fprintf(&b, "Programs compare events, conditions, statuses and errors of the kubelet with known texts. Berth emits\n"+
		"the same texts. Each is a row of\n"+
		"[messages.txt](../internal/record/events/messagestest/messages.txt), and a test produces it:\n%d rows in %d packages.\n\n", len(rows), len(packages))
	b.WriteString("| Where a client reads it | Rows |\n|---|---|\n")
	for _, w := range []struct{ where, what string }{
		{"event", "event"},
		{"condition", "condition of a pod, a node or a claim"},
		{"status", "status of a pod or a terminated container"},
		{"waiting", "state of a waiting container"},
		{"probe", "output of a probe, in the event `Unhealthy`"},
		{"grpc", "error of a gRPC service"},
		{"http", "body of the kubelet's HTTP API"},
		{"file", "file in a container"},
		{"lock", "inhibitor lock that delays a node shutdown"},
		{"error", "part of another message, of the log or of a startup error"},
	} {
		fmt.Fprintf(&b, "| %s | %d |\n", w.what, count[w.where])
	}
	b.WriteString("\n## Messages that do not occur\n\nBerth does not emit these messages of the kubelet.\n\n| Where | Reason | Message | Why |\n|---|---|---|---|\n")
	for _, r := range absent {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", r.Where, code(r.Reason, "-"), code(r.Form, "…"), r.Why)
	}
	const path = "../../../../docs/messages.md"
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != b.String() {
		t.Errorf("docs/messages.md is out of date: run go test ./internal/record/events/messagestest -run TestDoc -update: %v", err)
	}
}

// code returns the text as code, nothing if it stands for any.
func code(text, whatever string) string {
	if text == whatever {
		return ""
	}
	return "`" + text + "`"
}

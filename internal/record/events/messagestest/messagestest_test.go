package messagestest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

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
		case "event", "condition", "status", "waiting", "grpc", "http", "probe", "error":
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

// Package messagestest holds the list of messages that programs match: events, conditions, status
// reasons, and gRPC and HTTP errors that must equal the kubelet's.
//
// Owns: the list, messages.txt; the rows that the tests of a package produced; and absent.txt: the
// kubelet's messages that this agent does not have, each with the reason.
// Reads: what tests record.
// Never: is linked into the binary.
package messagestest

import (
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
)

//go:embed messages.txt
var list string

//go:embed absent.txt
var absentList string

// Row is a message that the tests of a package must produce.
type Row struct {
	// Where is the place in which a client reads the message: event, condition, status, waiting (of
	// a container), grpc, http, probe (its output), file (of a container), lock (of a node
	// shutdown), or error (in the log, at the agent's start, or within another message).
	Where string
	// Reason is that of an event or a condition, or the code of a response; - is any.
	Reason string
	// Form is the message with verbs of package fmt. An … at its start or end matches any text.
	Form string
	// Package is the directory whose tests produce the message.
	Package string
	// Source is the public page that documents the message.
	Source string

	form *regexp.Regexp
}

// Rows returns the list.
func Rows() ([]Row, error) {
	var rows []Row
	err := each("messages.txt", list, func(cells []string) {
		r := Row{Where: strings.TrimSpace(cells[0]), Reason: strings.TrimSpace(cells[1]), Form: cells[2], Package: strings.TrimSpace(cells[3]), Source: cells[4]}
		r.form = compile(r.Form)
		rows = append(rows, r)
	})
	return rows, err
}

// AbsentRow is a message of the kubelet that this agent does not have.
type AbsentRow struct {
	Where, Reason, Form string // as in a Row
	Why                 string // what replaces it
	Source              string
}

// Absent returns the messages that this agent does not have.
func Absent() ([]AbsentRow, error) {
	var rows []AbsentRow
	err := each("absent.txt", absentList, func(cells []string) {
		rows = append(rows, AbsentRow{Where: cells[0], Reason: cells[1], Form: cells[2], Why: cells[3], Source: cells[4]})
	})
	return rows, err
}

// each calls do with the five cells of each row of a list.
func each(file, list string, do func(cells []string)) error {
	seen := map[string]bool{}
	for number, line := range strings.Split(list, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		cells := strings.Split(line, " | ")
		if len(cells) != 5 {
			return fmt.Errorf("%s:%d: %d cells, want 5, as the file's first lines say", file, number+1, len(cells))
		}
		key := strings.Join(cells[:4], "|")
		if seen[key] {
			return fmt.Errorf("%s:%d: the row is there twice", file, number+1)
		}
		seen[key] = true
		do(cells)
	}
	return nil
}

var verb = regexp.MustCompile(`%[sdqv%]`)

// compile returns the expression that matches the messages of the form.
func compile(form string) *regexp.Regexp {
	body, before := strings.CutPrefix(form, "…")
	body, after := strings.CutSuffix(body, "…")
	out := `(?s)\A`
	if before {
		out += ".*"
	}
	last := 0
	for _, at := range verb.FindAllStringIndex(body, -1) {
		out += regexp.QuoteMeta(body[last:at[0]])
		switch body[at[0]:at[1]] {
		case "%d":
			out += `-?\d+`
		case "%q":
			out += `"(?:[^"\\]|\\.)*"`
		case "%%":
			out += "%"
		default:
			out += ".+"
		}
		last = at[1]
	}
	out += regexp.QuoteMeta(body[last:])
	if after {
		out += ".*"
	}
	return regexp.MustCompile(out + `\z`)
}

func (r *Row) matches(where, reason, message string) bool {
	return r.Where == where && (r.Reason == "-" || r.Reason == reason) && r.form.MatchString(message)
}

var (
	mu  sync.Mutex
	saw = map[record]bool{}
)

type record struct{ where, reason, message string }

// Saw records a message that a test produced. It is safe for concurrent use.
func Saw(where, reason, message string) {
	mu.Lock()
	defer mu.Unlock()
	saw[record{where, reason, message}] = true
}

// SawEvent records an event.
func SawEvent(reason, message string) { Saw("event", reason, message) }

// SawError records the text of an error; nil records nothing.
func SawError(err error) {
	if err != nil {
		Saw("error", "-", err.Error())
	}
}

// SawStatus records the reasons and messages of a pod's status, of its conditions and of its
// containers.
func SawStatus(s *v1.PodStatus) {
	Saw("status", s.Reason, s.Message)
	for _, c := range s.Conditions {
		Saw("condition", string(c.Type)+"/"+c.Reason, c.Message)
	}
	for _, list := range [][]v1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses} {
		for _, c := range list {
			for _, state := range []v1.ContainerState{c.State, c.LastTerminationState} {
				if t := state.Terminated; t != nil {
					Saw("status", t.Reason, t.Message)
				}
				if w := state.Waiting; w != nil {
					Saw("waiting", w.Reason, w.Message)
				}
			}
		}
	}
}

// SawGRPC records the error of a gRPC client; nil records nothing.
func SawGRPC(err error) {
	var s interface{ GRPCStatus() *status.Status }
	if errors.As(err, &s) {
		Saw("grpc", strconv.Itoa(int(s.GRPCStatus().Code())), s.GRPCStatus().Message())
	}
}

// unseen returns the rows of the package that no record matches.
func unseen(rows []Row, folder string, records map[record]bool) []Row {
	var out []Row
next:
	for i := range rows {
		r := &rows[i]
		if r.Package != folder {
			continue
		}
		for s := range records {
			if r.matches(s.where, s.reason, s.message) {
				continue next
			}
		}
		out = append(out, *r)
	}
	return out
}

// Main runs the tests of the package in the directory, and returns their exit code: 1 if they do
// not produce each of its rows. If only some tests run (-run), no rows are required.
func Main(m *testing.M, folder string) int {
	code := m.Run()
	if code != 0 || chosen() {
		return code
	}
	rows, err := Rows()
	if err != nil {
		fmt.Println("FAIL:", err)
		return 1
	}
	missing := unseen(rows, folder, saw)
	for _, r := range missing {
		fmt.Printf("FAIL: no test of %s produces the %s %s %q (%s), which programs match: see messages.txt of package messagestest\n", folder, r.Where, r.Reason, r.Form, r.Source)
		for s := range saw {
			if s.where == r.Where && s.reason == r.Reason {
				fmt.Printf("      the tests produce: %q\n", s.message)
			}
		}
	}
	if len(missing) > 0 {
		return 1
	}
	return 0
}

func chosen() bool {
	for _, name := range []string{"test.run", "test.list", "test.fuzz", "test.bench"} {
		if f := flag.Lookup(name); f != nil && f.Value.String() != "" {
			return true
		}
	}
	return false
}

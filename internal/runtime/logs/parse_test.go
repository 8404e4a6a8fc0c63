package logs

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	at := time.Date(2024, 5, 6, 7, 8, 9, 123456789, time.UTC)
	const stamp = "2024-05-06T07:08:09.123456789Z"
	tests := []struct {
		line string
		want entry // zero: refused
	}{
		{stamp + " stdout F hello world", entry{at, Stdout, false, []byte("hello world")}},
		{stamp + " stderr P part", entry{at, Stderr, true, []byte("part")}},
		{stamp + " stdout F:x:y tagged", entry{at, Stdout, false, []byte("tagged")}},
		{stamp + " stdout P:x tagged", entry{at, Stdout, true, []byte("tagged")}},
		{stamp + " stdout F ", entry{at, Stdout, false, []byte{}}},
		{stamp + " stdout F", entry{at, Stdout, false, nil}},
		{stamp + " stdout F  two blanks", entry{at, Stdout, false, []byte(" two blanks")}},
		{"2024-05-06T09:08:09.123456789+02:00 stdout F zone", entry{at.In(time.FixedZone("", 7200)), Stdout, false, []byte("zone")}},
		{"", entry{}},
		{"hello", entry{}},
		{stamp, entry{}},
		{stamp + " stdout", entry{}},
		{stamp + " stdin F x", entry{}},
		{stamp + " stdout X x", entry{}},
		{"yesterday stdout F x", entry{}},
		{`{"log":"hello\n","stream":"stdout","time":"` + stamp + `"}`, entry{at, Stdout, false, []byte("hello")}},
		{`{"log":"part","stream":"stderr","time":"` + stamp + `"}`, entry{at, Stderr, true, []byte("part")}},
		{`{"log":"\n","stream":"stderr","time":"` + stamp + `"}`, entry{at, Stderr, false, []byte{}}},
		{`{"log":"hello`, entry{}},
		{`{"log":"x","stream":"stdin"}`, entry{}},
	}
	for _, tt := range tests {
		got, err := parse([]byte(tt.line))
		if (err == nil) != (tt.want.stream != "") {
			t.Errorf("parse(%q): error %v", tt.line, err)
			continue
		}
		if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(entry{}), cmp.Comparer(bytes.Equal)); diff != "" {
			t.Errorf("parse(%q) (-want +got):\n%s", tt.line, diff)
		}
	}
}

// What is accepted can be written down again and is then read as the same.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"2024-05-06T07:08:09.123456789Z stdout F hello",
		"2024-05-06T07:08:09Z stderr P:a:b part",
		"2024-05-06T07:08:09+02:00 stdout F",
		`{"log":"hello\n","stream":"stdout","time":"2024-05-06T07:08:09Z"}`,
		`{"log":"part","stream":"stderr","time":"2024-05-06T07:08:09Z"}`,
		"", "{", " ", "\x00",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		if bytes.IndexByte(line, '\n') >= 0 {
			return // never given to parse
		}
		e, err := parse(line)
		if err != nil {
			if e.stream != "" || e.text != nil {
				t.Fatalf("parse(%q) failed with %v and returned %+v", line, err, e)
			}
			return
		}
		tag := "F"
		if e.partial {
			tag = "P"
		}
		again, err := parse(fmt.Appendf(nil, "%s %s %s %s", e.time.Format(time.RFC3339Nano), e.stream, tag, e.text))
		if err != nil {
			t.Fatalf("parse(%q) = %+v, which cannot be read again: %v", line, e, err)
		}
		if !again.time.Equal(e.time) || again.stream != e.stream || again.partial != e.partial || !bytes.Equal(again.text, e.text) {
			t.Fatalf("parse(%q) = %+v, and read again %+v", line, e, again)
		}
	})
}

//go:build cgo

package ctest

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// logged sends pieces of output, and returns the log that the pod shim writes.
func (h *harness) logged(record []byte) []byte {
	h.t.Helper()
	if err := os.Remove(h.log); err != nil && !errors.Is(err, os.ErrNotExist) {
		h.t.Fatal(err)
	}
	h.try('l', record)
	b, err := os.ReadFile(h.log)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		h.t.Fatal(err)
	}
	return b
}

// wantLog fails unless the content of the log is the output, apart from the ends of lines.
func wantLog(t testing.TB, record, log []byte) {
	t.Helper()
	var written, read [2][]byte
	for at := 0; at+3 <= len(record); {
		w, n := record[at]&1, min(int(record[at+1])|int(record[at+2])<<8, len(record)-at-3)
		written[w] = append(written[w], record[at+3:at+3+n]...)
		at += 3 + n
	}
	for len(log) > 0 {
		line, rest, ok := bytes.Cut(log, []byte("\n"))
		f := bytes.SplitN(line, []byte(" "), 4)
		if !ok || len(f) != 4 || len(f[0]) != len("2006-01-02T15:04:05.000000000Z") || len(f[3]) > 16384 {
			t.Fatalf("line %q of the log", line)
		}
		w := 0
		if string(f[1]) == "stderr" {
			w = 1
		}
		read[w] = append(read[w], f[3]...)
		if string(f[2]) == "F" {
			read[w] = append(read[w], '\n')
		}
		log = rest
	}
	for w := range written {
		if got, want := plain(read[w]), plain(written[w]); !bytes.Equal(got, want) {
			t.Fatalf("output %.200q of stream %d was logged as %.200q", want, w, got)
		}
	}
}

// plain removes the \r before the ends of lines. The log keeps it where a line was split.
func plain(text []byte) []byte { return ends.ReplaceAll(text, []byte("\n")) }

var ends = regexp.MustCompile(`\r+\n`)

// piece encodes output of a stream for the harness. With 2 added, the attached client does not
// read.
func piece(stream byte, text []byte) []byte {
	return append([]byte{stream, byte(len(text)), byte(len(text) >> 8)}, text...)
}

func TestLog(t *testing.T) {
	h := start(t)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		var record []byte
		for range rnd.IntN(12) {
			text := make([]byte, rnd.IntN([]int{4, 40, 17000, 60000}[rnd.IntN(4)]))
			for i := range text {
				text[i] = "\n\rxyxyxyxyxyxyxyxyxy"[rnd.IntN(20)]
			}
			record = append(record, piece(byte(rnd.IntN(4)), text)...)
		}
		wantLog(t, record, h.logged(record))
	}
}

func TestLines(t *testing.T) {
	h := start(t)
	long := strings.Repeat("x", 16384)
	for text, want := range map[string]string{
		"a\n\nb": "F a|F |P b", "a\r\nb\rc\n": "F a|F b\rc", long + "\n": "F " + long, long + "y\n": "P " + long + "|F y", "": "",
	} {
		var got []string
		for line := range strings.Lines(string(h.logged(piece(1, []byte(text))))) {
			got = append(got, strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 3)[2])
		}
		if strings.Join(got, "|") != want {
			t.Errorf("%.20q: %.60q, want %.60q", text, got, want)
		}
	}
}

func FuzzLog(f *testing.F) {
	f.Add([]byte("\x00\x05\x00one\r\n\x01\x03\x00err"))
	h := start(f)
	f.Fuzz(func(t *testing.T, record []byte) {
		h.t = t
		if len(record) < 1<<19 {
			wantLog(t, record, h.logged(record))
		}
	})
}

// A log that is a link or a FIFO is rejected without blocking.
func TestLogIsAFile(t *testing.T) {
	for name, put := range map[string]func(path, other string) error{
		"link": func(path, other string) error { return os.Symlink(other, path) },
		"FIFO": func(path, _ string) error { return syscall.Mkfifo(path, 0o600) },
	} {
		h := start(t)
		other := filepath.Join(t.TempDir(), "other")
		if err := os.WriteFile(other, []byte("of the host"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := put(h.log, other); err != nil {
			t.Fatal(err)
		}
		h.try('l', []byte("\x00\x05\x00text\n"))
		if b, err := os.ReadFile(other); err != nil || string(b) != "of the host" {
			t.Errorf("%s: the other file has %q, %v", name, b, err)
		}
		if st, err := os.Lstat(h.log); err != nil || st.Mode().IsRegular() {
			t.Errorf("%s: the log is %v, %v", name, st, err)
		}
	}
}

// If a process sends two descriptors, the second is closed.
func TestTwoDescriptors(t *testing.T) { start(t).try('h', nil) }

// A container exits even if another process writes to its output forever.
func TestEndlessOutput(t *testing.T) { start(t).try('e', nil) }

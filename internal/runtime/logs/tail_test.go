package logs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/utils/ptr"
)

// logEntry is an entry of a log that a test writes.
type logEntry struct {
	stream  Stream
	partial bool
	text    string
}

func (e logEntry) String() string {
	tag := "F"
	if e.partial {
		tag = "P"
	}
	return line(1, e.stream, tag, e.text)
}

// lastLines returns what the last n lines of the entries print on each stream.
func lastLines(entries []logEntry, n int) map[Stream]string {
	type wholeLine struct {
		stream Stream
		text   string
		last   int // index of its last entry
	}
	var all []wholeLine
	current := map[Stream]*wholeLine{}
	for i, e := range entries {
		l := current[e.stream]
		if l == nil {
			l = &wholeLine{stream: e.stream}
			current[e.stream] = l
		}
		l.text += e.text
		l.last = i
		if !e.partial {
			l.text += "\n"
			all = append(all, *l)
			current[e.stream] = nil
		}
	}
	// Lines that are not complete end with their last entry.
	for i := range entries {
		for _, l := range current {
			if l != nil && l.last == i {
				at := 0
				for at < len(all) && all[at].last < i {
					at++
				}
				all = append(all[:at], append([]wholeLine{*l}, all[at:]...)...)
			}
		}
	}
	out := map[Stream]string{}
	for _, l := range all[max(0, len(all)-n):] {
		out[l.stream] += l.text
	}
	return out
}

func entryLines(entries ...logEntry) string {
	var b strings.Builder
	for _, e := range entries {
		b.WriteString(e.String())
	}
	return b.String()
}

// writeEntries writes a log that was rotated before each of the entries with these indices. Every
// second part is compressed.
func writeEntries(t *testing.T, entries []logEntry, rotations ...int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "0.log")
	begin := 0
	for i, end := range append(rotations, len(entries)) {
		b := *bytes.NewBufferString(entryLines(entries[begin:end]...))
		begin = end
		name := path
		if i < len(rotations) {
			packed := i%2 == 0
			name = partPath(path, Part{Stamp{Second: fmt.Sprintf("20240101-00000%d", i)}, packed})
			if packed {
				b = zipped(t, b.Bytes())
			}
		}
		if err := os.WriteFile(name, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// The tail of random logs with long lines on both streams is what it is by the definition of a
// line, wherever files and windows of the scan begin.
func TestTailOfLongLines(t *testing.T) {
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 0))
		size := []int{1, 100, 5000}[seed%3] // of a text; the last fills several windows
		var entries []logEntry
		for i := range 3 + random.IntN(120) {
			e := logEntry{Stdout, random.IntN(3) == 0, fmt.Sprintf("%d%s.", i, strings.Repeat("x", random.IntN(size)))}
			if random.IntN(4) == 0 {
				e.stream = Stderr
			}
			entries = append(entries, e)
		}
		var rotations []int
		for at := random.IntN(len(entries)); at < len(entries) && len(rotations) < 3; at += 1 + random.IntN(len(entries)) {
			rotations = append(rotations, at)
		}
		path := writeEntries(t, entries, rotations...)
		for n := 0; n < len(entries)+2; n += 1 + random.IntN(10) {
			want := lastLines(entries, n)
			stdout, stderr := readAll(t, path, Options{TailLines: ptr.To(int64(n))}, bufferSize)
			if stdout != want[Stdout] || stderr != want[Stderr] {
				t.Fatalf("seed %d, rotated at %v, last %d lines: stdout %.300q, want %.300q; stderr %.300q, want %.300q", seed, rotations, n,
					stdout, want[Stdout], stderr, want[Stderr])
			}
		}
	}
}

// A line of many parts is printed whole, also one that is longer than the search behind the other
// stream goes.
func TestTailOfOneVeryLongLine(t *testing.T) {
	part := strings.Repeat("0123456789abcdef", 1<<10)
	entries := []logEntry{{Stdout, false, "first"}}
	for range 6 * tailApart / len(part) {
		entries = append(entries, logEntry{Stdout, true, part})
	}
	entries = append(entries, logEntry{Stdout, false, "end"})
	for name, path := range map[string]string{"one file": writeEntries(t, entries), "rotated": writeEntries(t, entries, 3, 40, 80)} {
		want := lastLines(entries, 1)
		if stdout, _ := readAll(t, path, Options{TailLines: ptr.To(int64(1))}, bufferSize); stdout != want[Stdout] {
			t.Errorf("%s: %d bytes, want %d", name, len(stdout), len(want[Stdout]))
		}
	}
}

// The only line of a stream costs no scan of the whole log for an earlier part of it.
func TestTailBehindTheOtherStream(t *testing.T) {
	entries := []logEntry{{Stderr, true, "far "}}
	for i := range 8 * tailApart / 1000 {
		entries = append(entries, logEntry{Stdout, false, fmt.Sprint(i, strings.Repeat("x", 1000))})
	}
	entries = append(entries, logEntry{Stderr, false, "away"})
	path := writeEntries(t, entries)
	p, err := openLive(path)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	read := &countedReads{source: p.File}
	p.source = read
	st, err := p.Stat()
	if err != nil {
		t.Fatal(err)
	}
	lines := tail{missing: 1, end: position{0, st.Size()}}
	if err := lines.scan(p, 0, st.Size(), make([]byte, bufferSize)); err != nil {
		t.Fatal(err)
	}
	if !lines.complete() || lines.begin().offset < st.Size()-100 {
		t.Errorf("the tail begins at %+v of %d", lines, st.Size())
	}
	if read.bytes == 0 || read.bytes > 4<<20 {
		t.Errorf("%d bytes of %d were read", read.bytes, st.Size())
	}
}

// countedReads counts the bytes that are read.
type countedReads struct {
	source *os.File
	bytes  int
}

func (c *countedReads) Read(b []byte) (int, error) {
	n, err := c.source.Read(b)
	c.bytes += n
	return n, err
}

// A follower begins with the whole last line, goes on with it, and then with all lines.
func TestFollowFromTheTailOfALongLine(t *testing.T) {
	path := logFile(t, entryLines(logEntry{Stdout, false, "old"}, logEntry{Stdout, true, "lo"}, logEntry{Stderr, false, "x"}, logEntry{Stdout, true, "ng"}))
	f := startFollow(t, path, Options{TailLines: ptr.To(int64(1))})
	f.await(t, "long")
	appendTo(t, path, entryLines(logEntry{Stderr, false, "y"}, logEntry{Stdout, false, "er"}))
	f.await(t, "longy\ner\n")
	if err := os.Rename(path, partPath(path, Part{Stamp: Stamp{Second: "20240101-000000"}})); err != nil {
		t.Fatal(err)
	}
	appendTo(t, path, entryLines(logEntry{Stderr, false, "z"}))
	f.await(t, "longy\ner\nz\n")
	close(f.exited)
	if err := <-f.result; err != nil {
		t.Fatal(err)
	}
}

// A part that was removed after it was found is left out.
func TestTailOfARemovedPart(t *testing.T) {
	entries := []logEntry{{Stdout, true, "a"}, {Stdout, false, "b"}, {Stdout, false, "c"}}
	path := writeEntries(t, entries, 1)
	if err := os.Remove(partPath(path, Part{Stamp{Second: "20240101-000000"}, true})); err != nil {
		t.Fatal(err)
	}
	if stdout, _ := readAll(t, path, Options{TailLines: ptr.To(int64(2))}, bufferSize); stdout != "b\nc\n" {
		t.Errorf("got %q", stdout)
	}
}

func TestTailText(t *testing.T) {
	long := strings.Repeat("x", 5000)
	path := logFile(t, entryLines(logEntry{Stdout, false, "first"}, logEntry{Stdout, true, long}, logEntry{Stdout, true, long}, logEntry{Stdout, false, "end"}, logEntry{Stderr, false, "bad"}))
	for _, limit := range []int{1, 4, 5, 100, 20000} {
		text, err := Tail(t.Context(), path, 2, limit)
		if err != nil {
			t.Fatal(err)
		}
		want := long + long + "end\nbad\n"
		if want = want[max(0, len(want)-limit):]; text != want {
			t.Errorf("limit %d: %d bytes, want %d", limit, len(text), len(want))
		}
	}
	for _, none := range []string{"", path + ".none"} {
		if _, err := Tail(t.Context(), none, 2, 100); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("missing log %q: %v", none, err)
		}
	}
}

func TestLastBytes(t *testing.T) {
	const limit = 2048
	for _, size := range []int{1, 7, 1000, limit - 1, limit, limit + 1, 5 * limit} {
		last := lastBytes{limit: limit}
		var all strings.Builder
		for i := 0; all.Len() < 3*limit; i++ {
			piece := strings.Repeat(string(rune('a'+i%26)), size)
			all.WriteString(piece)
			if n, err := last.Write([]byte(piece)); n != size || err != nil {
				t.Fatal(n, err)
			}
		}
		if want := all.String()[all.Len()-limit:]; string(last.bytes) != want {
			t.Errorf("pieces of %d: %d bytes are left, and not the last ones", size, len(last.bytes))
		}
	}
}

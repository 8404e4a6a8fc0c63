package logs

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"
)

func TestPartNames(t *testing.T) {
	for name, want := range map[string]*Part{
		"0.log.20260102-150405":                     {Stamp{"20260102-150405", 0}, false},
		"0.log.20260102-150405.gz":                  {Stamp{"20260102-150405", 0}, true},
		"0.log.20260102-150405-012":                 {Stamp{"20260102-150405", 12}, false},
		"0.log.20260102-150405-1200.gz":             {Stamp{"20260102-150405", 1200}, true},
		"0.log":                                     nil,
		"0.log.":                                    nil,
		"0.log.gz":                                  nil,
		"1.log.20260102-150405":                     nil,
		"10.log.20260102-150405":                    nil,
		"0.log.20260102-150405.tmp":                 nil,
		"0.log.20260102-150405.gz.tmp":              nil,
		"0.log.20260102-150405.gz.gz":               nil,
		"0.log.20261302-150405":                     nil,
		"0.log.20260102-1504":                       nil,
		"0.log.20260102-150405-1":                   nil,
		"0.log.20260102-150405-000":                 nil,
		"0.log.20260102-150405-+01":                 nil,
		"0.log.20260102-150405--01":                 nil,
		"0.log.20260102-150405-01.2":                nil,
		"0.log.20260102-150405012":                  nil,
		"0.log.20260102-150405-9999999999999999999": nil,
	} {
		p, ok := ParsePart("0.log", name)
		if ok != (want != nil) || ok && p != *want {
			t.Errorf("%s: %+v, %v", name, p, ok)
		}
		if ok && p.Name("0.log") != name {
			t.Errorf("%s is called %s", name, p.Name("0.log"))
		}
	}
}

func TestStampsGoOn(t *testing.T) {
	now := time.Date(2026, 1, 2, 15, 4, 5, 0, time.Local)
	for _, tc := range []struct {
		last Stamp
		now  time.Time
		want string
	}{
		{Stamp{}, now, "20260102-150405"},
		{Stamp{Second: "20260102-150404", Number: 7}, now, "20260102-150405"},
		{Stamp{Second: "20260102-150405"}, now, "20260102-150405-001"},
		{Stamp{Second: "20260102-150405", Number: 9}, now, "20260102-150405-010"},
		{Stamp{Second: "20260102-160405"}, now, "20260102-160405-001"}, // the clock was set back
	} {
		got := tc.last.Next(tc.now)
		if got.String() != tc.want || got.Compare(tc.last) <= 0 {
			t.Errorf("after %v: %v, want %s", tc.last, got, tc.want)
		}
	}
}

// rotatedLog makes a log of whole numbers, one a line, of which each part has some; those marked
// are compressed.
func rotatedLog(t *testing.T, compressed ...bool) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "0.log")
	n := 0
	for i, packed := range append(compressed, false) {
		var b bytes.Buffer
		for range 3 {
			n++
			fmt.Fprint(&b, line(n, Stdout, "F", fmt.Sprint(n)))
		}
		name := path
		if i < len(compressed) {
			name = partPath(path, Part{Stamp{Second: fmt.Sprintf("20240101-00000%d", i)}, packed})
		}
		if packed {
			b = zipped(t, b.Bytes())
		}
		if err := errors.Join(os.WriteFile(name, b.Bytes(), 0o600), os.Chtimes(name, time.Time{}, at(n))); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

func zipped(t testing.TB, content []byte) (b bytes.Buffer) {
	t.Helper()
	z := gzip.NewWriter(&b)
	_, err := z.Write(content)
	if err := errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	return b
}

// numbers are those from first to last, as they are printed.
func numbers(first, last int) string {
	var b strings.Builder
	for n := first; n <= last; n++ {
		fmt.Fprintln(&b, n)
	}
	return b.String()
}

func TestReadOverParts(t *testing.T) {
	for name, packed := range map[string][]bool{"plain": {false, false}, "compressed": {true, false}, "all compressed": {true, true}} {
		path := rotatedLog(t, packed...)
		for tail := range int64(11) {
			for _, size := range []int{128, bufferSize} {
				got, _ := readAll(t, path, Options{TailLines: &tail}, size)
				if want := numbers(10-min(int(tail), 9), 9); got != want {
					t.Errorf("%s, last %d lines with a buffer of %d: %q, want %q", name, tail, size, got, want)
				}
			}
		}
		for since := 1; since <= 10; since++ {
			if got, _ := readAll(t, path, Options{Since: at(since)}, 128); got != numbers(since, 9) {
				t.Errorf("%s, since %d: %q", name, since, got)
			}
		}
		if got, _ := readAll(t, path, Options{LimitBytes: ptr.To(int64(9))}, 128); got != numbers(1, 4)+"5" {
			t.Errorf("%s, 9 bytes: %q", name, got)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if got, _ := readAll(t, path, Options{}, 128); got != numbers(1, 6) || Find(path) != nil {
			t.Errorf("%s, half way: %q, %v", name, got, Find(path))
		}
	}
}

// A line that a rotation has cut is one line; parts of other incarnations are none of ours, nor is
// what is not whole.
func TestReadAmongOtherFiles(t *testing.T) {
	path := rotatedLog(t, false)
	dir := filepath.Dir(path)
	damaged := zipped(t, []byte(line(1, Stdout, "F", "whole")+line(2, Stdout, "F", strings.Repeat("cut", 5000))))
	for name, content := range map[string]string{
		"0.log.20230101-000000.gz":     damaged.String()[:damaged.Len()-12],
		"0.log.20230102-000000.gz":     "no gzip",
		"0.log.20230103-000000.gz":     "",
		"0.log.20250101-000000":        line(7, Stdout, "P", "cut "),
		"0.log.20250101-000000.gz":     "of it both are there for a moment",
		"0.log.20240101-000000.gz.tmp": "x", "0.log.1": line(1, Stdout, "F", "x"), "1.log.20240101-000000": line(1, Stdout, "F", "x"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, _ := readAll(t, path, Options{}, 128)
	if want := numbers(1, 3) + "cut " + numbers(4, 6); !strings.HasSuffix(got, want) || strings.Contains(got, "x") || !strings.HasPrefix(got, "whole\n") {
		t.Errorf("got %q, want %q at its end", got, want)
	}
	if err := Find(filepath.Join(dir, "2.log")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a log: %v", err)
	}
}

// shaker writes numbered lines to a log, and rotates it as the manager and the runtime do.
type shaker struct {
	t     *testing.T
	rand  *rand.Rand
	path  string
	live  *os.File
	last  Stamp
	parts []Stamp
	n     int // the last line
}

func (s *shaker) must(errs ...error) {
	s.t.Helper()
	if err := errors.Join(errs...); err != nil {
		s.t.Fatal(err)
	}
}

func (s *shaker) open() *os.File {
	s.t.Helper()
	f, err := os.OpenFile(s.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	s.must(err)
	return f
}

// write appends the next line, now and then in two halves. Its time is the file's, as on a machine.
func (s *shaker) write(f *os.File) {
	s.n++
	s.writeLine(f, s.n)
}

func (s *shaker) writeLine(f *os.File, n int) {
	text := line(n%60, Stdout, "F", fmt.Sprint(n))
	half := 0
	if s.rand.IntN(4) == 0 {
		half = len(text) / 2
	}
	for _, piece := range []string{text[:half], text[half:]} {
		_, err := f.WriteString(piece)
		s.must(err, os.Chtimes(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), time.Time{}, time.Now()))
		s.pause(20 * time.Millisecond)
	}
}

func (s *shaker) pause(most time.Duration) { time.Sleep(time.Duration(s.rand.Int64N(int64(most)))) }

// rotate renames the log; for a while the runtime goes on with the old file.
func (s *shaker) rotate() {
	time.Sleep(closeDelay)
	s.last = s.last.Next(time.Now())
	s.must(os.Rename(s.path, partPath(s.path, Part{Stamp: s.last})))
	for range s.rand.IntN(3) {
		s.write(s.live)
	}
	old := s.live
	s.live = s.open()
	if s.rand.IntN(2) == 0 { // what the runtime had in hand comes after the first line of the new file
		s.n += 2
		s.writeLine(s.live, s.n)
		s.pause(5 * closeDelay) // a busy machine
		s.writeLine(old, s.n-1)
	}
	s.must(old.Close())
	s.parts = append(s.parts, s.last)
	if s.rand.IntN(4) == 0 && len(s.parts) > 1 {
		s.compress(s.parts[len(s.parts)-2])
	}
}

func (s *shaker) compress(p Stamp) {
	plain, packed := partPath(s.path, Part{Stamp: p}), partPath(s.path, Part{p, true})
	b, err := os.ReadFile(plain)
	if errors.Is(err, fs.ErrNotExist) {
		return // it is compressed
	}
	z := zipped(s.t, b)
	st, e := os.Stat(plain)
	s.must(err, e, os.WriteFile(packed+UnfinishedSuffix, z.Bytes(), 0o600), os.Chtimes(packed+UnfinishedSuffix, time.Time{}, st.ModTime()))
	s.pause(10 * time.Millisecond)
	s.must(os.Rename(packed+UnfinishedSuffix, packed))
	s.pause(time.Millisecond)
	s.must(os.Remove(plain))
}

// prune removes the oldest part.
func (s *shaker) prune() {
	p := s.parts[0]
	s.parts = s.parts[1:]
	for _, packed := range []bool{false, true} {
		if err := os.Remove(partPath(s.path, Part{p, packed})); !errors.Is(err, fs.ErrNotExist) {
			s.must(err)
		}
	}
}

// Whatever is rotated, compressed and removed meanwhile, a follower that keeps up sees each line
// once; and who only reads sees, up to the end, all that there is.
func TestFollowOverRandomRotations(t *testing.T) {
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			s := &shaker{t: t, rand: rand.New(rand.NewPCG(seed, 1)), path: filepath.Join(t.TempDir(), "0.log")}
			s.live = s.open()
			defer func() { s.must(s.live.Close()) }()
			s.write(s.live)
			out, exited, result := newCollector(), make(chan struct{}), make(chan error, 1)
			go func() {
				result <- Read(t.Context(), s.path, Options{Follow: true, Exited: exited}, nil, Streams{out, out})
			}()
			for range 150 {
				switch s.rand.IntN(8) {
				case 0, 1:
					s.rotate()
				case 2:
					// A follower without inotify looks once a second. It has printed what was
					// rotated before.
					time.Sleep(3 * time.Second)
					for len(s.parts) > 2 {
						s.prune()
					}
				case 3:
					if len(s.parts) > 1 {
						s.compress(s.parts[s.rand.IntN(len(s.parts)-1)])
					}
				case 4:
					s.readAll()
				default:
					s.write(s.live)
				}
			}
			close(exited)
			if err := <-result; err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(numbers(1, s.n), out.text); diff != "" {
				t.Fatalf("seed %d (-want +got):\n%s", seed, diff)
			}
		})
	}
}

// readAll checks what a reader sees that does not follow.
func (s *shaker) readAll() {
	s.t.Helper()
	tail := s.rand.Int64N(30)
	all, _ := readAll(s.t, s.path, Options{}, bufferSize)
	last, _ := readAll(s.t, s.path, Options{TailLines: &tail}, bufferSize)
	lines := strings.SplitAfter(all, "\n")
	lines = lines[:len(lines)-1]
	if want := numbers(s.n-len(lines)+1, s.n); all != want {
		s.t.Errorf("read %q, want %q", all, want)
	}
	if want := strings.Join(lines[max(0, len(lines)-int(tail)):], ""); last != want {
		s.t.Errorf("last %d lines %q, want %q", tail, last, want)
	}
	if !slices.IsSortedFunc(s.parts, Stamp.Compare) {
		s.t.Errorf("stamps are out of order: %v", s.parts)
	}
}

// What the runtime had in hand for a file that was rotated a moment ago is waited for.
func TestReadJustAfterARotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := logFile(t, line(3, Stdout, "F", "3"))
		part := partPath(path, Part{Stamp: Stamp{Second: "20240101-000000"}})
		appendTo(t, part, line(1, Stdout, "F", "1"))
		old, err := os.OpenFile(part, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		late := time.AfterFunc(5*closeDelay, func() {
			appendTo(t, part, line(2, Stdout, "F", "2"))
			old.Close()
		})
		defer late.Stop()
		if got, _ := readAll(t, path, Options{}, 128); got != numbers(1, 3) {
			t.Errorf("got %q", got)
		}
	})
}

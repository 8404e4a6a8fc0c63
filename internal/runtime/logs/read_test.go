package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// at returns the time of the n-th second of the tests' logs, in the logs' own spelling.
func at(n int) time.Time  { return time.Date(2024, 1, 1, 0, 0, n, 0, time.UTC) }
func stamp(n int) string  { return at(n).Format(time.RFC3339Nano) }
func padded(n int) string { return fmt.Sprintf("2024-01-01T00:00:%02d.000000000Z", n) }

func line(n int, stream Stream, tag, text string) string {
	return fmt.Sprintf("%s %s %s %s\n", stamp(n), stream, tag, text)
}

func logFile(t testing.TB, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "0.log")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// readAll reads with a buffer of the size.
func readAll(t testing.TB, path string, o Options, size int) (stdout, stderr string) {
	t.Helper()
	var outBuf, errBuf bytes.Buffer
	r := &reader{path: path, options: o, out: newOutput(o, &outBuf, &errBuf)}
	if err := r.read(t.Context(), nil, make([]byte, size)); err != nil && !errors.Is(err, errLimit) {
		t.Fatal(err)
	}
	return outBuf.String(), errBuf.String()
}

func TestRead(t *testing.T) {
	mixed := line(1, Stdout, "F", "one") + line(2, Stderr, "F", "bad") + line(3, Stdout, "P", "two ") +
		line(4, Stderr, "F", "worse") + line(5, Stdout, "F", "halves") + line(6, Stdout, "F", "three")
	tests := map[string]struct {
		log            string
		options        Options
		stdout, stderr string
	}{
		"all":        {mixed, Options{}, "one\ntwo halves\nthree\n", "bad\nworse\n"},
		"one stream": {mixed, Options{Stream: Stderr}, "", "bad\nworse\n"},
		"timestamps only where lines begin": {
			mixed,
			Options{Timestamps: true},
			padded(1) + " one\n" + padded(3) + " two halves\n" + padded(6) + " three\n",
			padded(2) + " bad\n" + padded(4) + " worse\n",
		},
		"since":                      {mixed, Options{Since: at(5)}, "halves\nthree\n", ""},
		"since later than all":       {mixed, Options{Since: at(7)}, "", ""},
		"tail begins with a part":    {mixed, Options{TailLines: ptr.To(int64(2))}, "two halves\nthree\n", ""},
		"tail between parts":         {mixed, Options{TailLines: ptr.To(int64(3))}, "two halves\nthree\n", "worse\n"},
		"tail of one stream":         {mixed, Options{TailLines: ptr.To(int64(2)), Stream: Stderr}, "", "bad\nworse\n"},
		"tail and limit":             {mixed, Options{TailLines: ptr.To(int64(2)), LimitBytes: ptr.To(int64(5))}, "two h", ""},
		"tail 0":                     {mixed, Options{TailLines: ptr.To(int64(0))}, "", ""},
		"tail beyond the beginning":  {mixed, Options{TailLines: ptr.To(int64(99))}, "one\ntwo halves\nthree\n", "bad\nworse\n"},
		"tail and since":             {mixed, Options{TailLines: ptr.To(int64(3)), Since: at(6)}, "three\n", ""},
		"limit":                      {mixed, Options{LimitBytes: ptr.To(int64(6)), Stream: Stdout}, "one\ntw", ""},
		"limit over both streams":    {mixed, Options{LimitBytes: ptr.To(int64(6))}, "one\n", "ba"},
		"limit above all":            {mixed, Options{LimitBytes: ptr.To(int64(1000))}, "one\ntwo halves\nthree\n", "bad\nworse\n"},
		"empty":                      {"", Options{TailLines: ptr.To(int64(3))}, "", ""},
		"empty lines":                {line(1, Stdout, "F", "") + line(2, Stdout, "F", ""), Options{}, "\n\n", ""},
		"no line end":                {strings.TrimSuffix(mixed, "\n"), Options{TailLines: ptr.To(int64(1))}, "three\n", ""},
		"ends in a part":             {line(1, Stdout, "P", "x"), Options{}, "x", ""},
		"foreign lines are left out": {"hello\n" + line(1, Stdout, "F", "x") + "\n{}\n" + line(2, Stdout, "F", "y") + "2024", Options{}, "x\ny\n", ""},
		"docker": {
			`{"log":"one\n","stream":"stdout","time":"` + stamp(1) + `"}` + "\n" +
				`{"log":"two ","stream":"stdout","time":"` + stamp(2) + `"}` + "\n" +
				`{"log":"halves\n","stream":"stdout","time":"` + stamp(3) + `"}` + "\n" +
				`{"log":"b\u0061d\n","stream":"stderr","time":"` + stamp(4) + `"}` + "\n",
			Options{Timestamps: true},
			padded(1) + " one\n" + padded(2) + " two halves\n", padded(4) + " bad\n",
		},
		"carriage returns are text": {line(1, Stdout, "F", "x\r"), Options{}, "x\r\n", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			path := logFile(t, tt.log)
			for _, size := range []int{128, bufferSize} {
				stdout, stderr := readAll(t, path, tt.options, size)
				if diff := cmp.Diff([]string{tt.stdout, tt.stderr}, []string{stdout, stderr}); diff != "" {
					t.Errorf("buffer of %d (-want +got):\n%s", size, diff)
				}
			}
		})
	}
}

func TestOneWriterKeepsTheOrder(t *testing.T) {
	path := logFile(t, line(1, Stdout, "F", "a")+line(2, Stderr, "F", "b")+line(3, Stdout, "F", "c"))
	var b bytes.Buffer
	if err := Read(t.Context(), path, Options{}, nil, Streams{&b, &b}); err != nil {
		t.Fatal(err)
	}
	if b.String() != "a\nb\nc\n" {
		t.Errorf("got %q", b.String())
	}
	b.Reset()
	if err := Read(t.Context(), path, Options{}, nil, Streams{nil, &b}); err != nil {
		t.Fatal(err)
	}
	if b.String() != "b\n" {
		t.Errorf("without a writer for stdout: %q", b.String())
	}
}

func TestLongLines(t *testing.T) {
	long := strings.Repeat("0123456789", 1000)
	object := `{"log":"` + long + `\n","stream":"stdout","time":"` + stamp(4) + `"}`
	path := logFile(t, line(1, Stdout, "F", "x")+line(2, Stdout, "F", long)+line(3, Stderr, "F", long)+object+"\n"+
		line(5, Stdout, "P", long)+line(5, Stdout, "F", "end"))
	for _, size := range []int{100, 101, 127, 1000, 9999, 10033, 10034, 10035, len(object) - 1, len(object), len(object) + 1, bufferSize} {
		stdout, stderr := readAll(t, path, Options{Timestamps: true}, size)
		want := padded(1) + " x\n" + padded(2) + " " + long + "\n"
		if size >= len(object) {
			want += padded(4) + " " + long + "\n"
		}
		want += padded(5) + " " + long + "end\n"
		if stdout != want {
			t.Errorf("buffer of %d: stdout has %d bytes, want %d", size, len(stdout), len(want))
		}
		if want := padded(3) + " " + long + "\n"; stderr != want {
			t.Errorf("buffer of %d: stderr has %d bytes, want %d", size, len(stderr), len(want))
		}
		if stdout, _ := readAll(t, path, Options{Since: at(5)}, size); stdout != long+"end\n" {
			t.Errorf("buffer of %d: since the last line: %d bytes", size, len(stdout))
		}
	}
}

// A line of 64 MiB must not be held, neither when it is read nor when the tail is looked for.
func TestMemoryIsBounded(t *testing.T) {
	path := logFile(t, line(1, Stdout, "F", ""))
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := bytes.Repeat([]byte{'x'}, 1<<20)
	if _, err := f.WriteString(strings.TrimSuffix(line(2, Stdout, "F", "y"), "\n")); err != nil {
		t.Fatal(err)
	}
	for range 64 {
		if _, err := f.Write(block); err != nil {
			t.Fatal(err)
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var n countingWriter
	if err := Read(t.Context(), path, Options{TailLines: ptr.To(int64(1))}, nil, Streams{&n, nil}); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if want := countingWriter(1 + 64<<20 + 1); n != want {
		t.Errorf("%d bytes, want %d", n, want)
	}
	if got := after.TotalAlloc - before.TotalAlloc; got > 4<<20 {
		t.Errorf("%d bytes were allocated to print one line of 64 MiB", got)
	}
}

type countingWriter int64

func (c *countingWriter) Write(p []byte) (int, error) {
	*c += countingWriter(len(p))
	return len(p), nil
}

func TestReadErrors(t *testing.T) {
	if err := Read(t.Context(), filepath.Join(t.TempDir(), "none"), Options{}, nil, Streams{nil, nil}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing log: %v", err)
	}
	path := logFile(t, line(1, Stdout, "F", "x"))
	closed := errors.New("closed")
	if err := Read(t.Context(), path, Options{}, nil, Streams{failingWriter{closed}, nil}); !errors.Is(err, closed) {
		t.Errorf("broken writer: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Read(ctx, path, Options{}, nil, Streams{nil, nil}); !errors.Is(err, context.Canceled) {
		t.Errorf("dead context: %v", err)
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

func TestOptionsFrom(t *testing.T) {
	now := at(50)
	good := map[string]struct {
		in   v1.PodLogOptions
		want Options
	}{
		"none": {v1.PodLogOptions{}, Options{}},
		"all": {
			v1.PodLogOptions{Follow: true, Timestamps: true, TailLines: ptr.To(int64(3)), LimitBytes: ptr.To(int64(9)), SinceSeconds: ptr.To(int64(10)), Stream: ptr.To("All")},
			Options{Follow: true, Timestamps: true, TailLines: ptr.To(int64(3)), LimitBytes: ptr.To(int64(9)), Since: at(40)},
		},
		"since time": {v1.PodLogOptions{SinceTime: ptr.To(metav1.NewTime(at(7)))}, Options{Since: at(7)}},
		"stream":     {v1.PodLogOptions{Stream: ptr.To("Stderr")}, Options{Stream: Stderr}},
	}
	for name, tt := range good {
		got, err := OptionsFrom(&tt.in, now)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	bad := map[string]v1.PodLogOptions{
		`tailLines: -1: must not be negative`:                                         {TailLines: ptr.To(int64(-1))},
		`limitBytes: 0: must be greater than 0`:                                       {LimitBytes: ptr.To(int64(0))},
		`sinceSeconds: 0: must be greater than 0`:                                     {SinceSeconds: ptr.To(int64(0))},
		`sinceTime: must not be given together with sinceSeconds`:                     {SinceSeconds: ptr.To(int64(1)), SinceTime: ptr.To(metav1.NewTime(at(1)))},
		`stream: "stdout": must be "All", "Stdout" or "Stderr"`:                       {Stream: ptr.To("stdout")},
		`tailLines: must not be given together with stream "Stdout"`:                  {Stream: ptr.To("Stdout"), TailLines: ptr.To(int64(1))},
		"tailLines: -1: must not be negative\nlimitBytes: -2: must be greater than 0": {TailLines: ptr.To(int64(-1)), LimitBytes: ptr.To(int64(-2))},
	}
	for want, in := range bad {
		if _, err := OptionsFrom(&in, now); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestPaths(t *testing.T) {
	got := []string{
		PodDir("/var/log/pods", "default", "web", "u-1"),
		LinkPath("/var/log/containers", "web", "default", "app", "0123"),
	}
	want := []string{"/var/log/pods/default_web_u-1", "/var/log/containers/web_default_app-0123.log"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("paths (-want +got):\n%s", diff)
	}
	long := filepath.Base(LinkPath("/l", strings.Repeat("p", 253), "default", "app", strings.Repeat("0", 64)))
	if len(long) != 255 || !strings.HasSuffix(long, ".log") {
		t.Errorf("a long name has %d bytes and ends in %q", len(long), long[len(long)-4:])
	}
}

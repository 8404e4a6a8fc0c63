package systemd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/coreos/go-systemd/v22/journal"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// entry is one of the journal.
type entry struct {
	message  string
	priority journal.Priority
	fields   map[string]string
}

// collect returns a log and the entries that the journal has of it.
func collect() (*slog.Logger, *[]entry) {
	var entries []entry
	return slog.New(NewJournalHandler(JournalConfig{Level: slog.LevelInfo, Stream: io.Discard, Send: func(m string, p journal.Priority, f map[string]string) error {
		entries = append(entries, entry{m, p, f})
		return nil
	}})), &entries
}

func TestJournalEntries(t *testing.T) {
	log, entries := collect()
	log.Debug("too fine")
	log.Info("the agent is ready")
	log.Warn("a pod waits", "pod", "default/web", "container", "main", "nextTry", 10, "error", errors.New("no image"))
	of := log.With("pod", "default/db", "level", 3).WithGroup("volume").With("name", "data")
	of.Error("not mounted", "fs-type", "ext4", slog.Group("of", "id", 7), slog.Group("", "in", "line"))
	log.With("pod", "default/web").Info("another", "message", "own", "priority", 2, "9_lives_", true, "", "nameless", strings.Repeat("long", 20), 1)
	log.WithGroup("").Info("text\nof two lines", "stack", "a\nb")
	want := []entry{
		{"the agent is ready", journal.PriInfo, map[string]string{}},
		{
			`a pod waits pod=default/web container=main nextTry=10 error="no image"`, journal.PriWarning,
			map[string]string{"POD": "default/web", "CONTAINER": "main", "NEXTTRY": "10", "ERROR": "no image"},
		},
		{
			"not mounted pod=default/db level=3 volume.name=data volume.fs-type=ext4 volume.of.id=7 volume.in=line", journal.PriErr,
			map[string]string{"POD": "default/db", "LEVEL": "3", "VOLUME_NAME": "data", "VOLUME_FS_TYPE": "ext4", "VOLUME_OF_ID": "7", "VOLUME_IN": "line"},
		},
		{
			`another pod=default/web message=own priority=2 9_lives_=true ""=nameless ` + strings.Repeat("long", 20) + "=1", journal.PriInfo,
			map[string]string{"POD": "default/web", "LIVES_": "true", strings.Repeat("LONG", 16): "1"},
		},
		{"text\nof two lines stack=\"a\\nb\"", journal.PriInfo, map[string]string{"STACK": "a\nb"}},
	}
	if diff := cmp.Diff(want, *entries, cmp.AllowUnexported(entry{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// What the journal's socket does not take is a line of the stream, with its priority.
func TestJournalAway(t *testing.T) {
	var stream bytes.Buffer
	log := slog.New(NewJournalHandler(JournalConfig{Stream: &stream, Send: func(string, journal.Priority, map[string]string) error { return unix.ECONNREFUSED }}))
	log.Warn("one\ntwo", "pod", "default/web")
	log.Error("three")
	log.Info("four\x00<0>five\r\n<0>six") // zeros end a line of the stream, too
	if want := "<4>one two pod=default/web\n<3>three\n<6>four <0>five  <0>six\n"; stream.String() != want {
		t.Errorf("the stream has %q, want %q", &stream, want)
	}
}

func TestPriorities(t *testing.T) {
	for level, want := range map[slog.Level]string{
		slog.LevelDebug: "<7>", slog.LevelInfo: "<6>", slog.LevelInfo + 1: "<6>", slog.LevelWarn: "<4>", slog.LevelError: "<3>", slog.LevelError + 4: "<3>",
	} {
		if got := Prefix(level); got != want {
			t.Errorf("%v is %s, want %s", level, got, want)
		}
	}
}

func TestIsJournal(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	other, err := os.Create(t.TempDir() + "/log")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	var stat unix.Stat_t
	if err := unix.Fstat(int(w.Fd()), &stat); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		stream string
		w      io.Writer
		want   bool
	}{
		"the stream":        {fmt.Sprintf("%d:%d", stat.Dev, stat.Ino), w, true},
		"not set":           {"", w, false},
		"another device":    {fmt.Sprintf("%d:%d", stat.Dev+1, stat.Ino), w, false},
		"redirected":        {fmt.Sprintf("%d:%d", stat.Dev, stat.Ino), other, false},
		"not of this shape": {"here", w, false},
		"no file":           {fmt.Sprintf("%d:%d", stat.Dev, stat.Ino), io.Discard, false},
	} {
		t.Setenv("JOURNAL_STREAM", test.stream)
		if got := IsJournal(test.w); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

package systemd

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"strings"
	"sync"

	"github.com/coreos/go-systemd/v22/journal"
	"golang.org/x/sys/unix"
)

// IsJournal reports whether what is written to w goes to systemd's journal: w is the stream whose
// device and inode JOURNAL_STREAM names, as in a service with StandardError=journal
// (systemd.exec(5)).
func IsJournal(w io.Writer) bool {
	f, ok := w.(interface{ Fd() uintptr })
	if !ok {
		return false
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return false
	}
	return os.Getenv("JOURNAL_STREAM") == fmt.Sprintf("%d:%d", stat.Dev, stat.Ino)
}

// Prefix begins a line that is written to a stream of the journal, and tells the level of it:
// SyslogLevelPrefix= of systemd.exec(5), sd-daemon(3).
func Prefix(level slog.Level) string { return fmt.Sprintf("<%d>", priority(level)) }

// priority is syslog's name for the level.
func priority(level slog.Level) journal.Priority {
	switch {
	case level >= slog.LevelError:
		return journal.PriErr
	case level >= slog.LevelWarn:
		return journal.PriWarning
	case level >= slog.LevelInfo:
		return journal.PriInfo
	}
	return journal.PriDebug
}

// JournalConfig is what a log for the journal needs.
type JournalConfig struct {
	Level slog.Leveler
	// Stream is where entries go, a line each, that the journal does not take with their fields.
	Stream io.Writer
	// Send hands an entry to the journal; nil is its socket.
	Send func(message string, p journal.Priority, fields map[string]string) error
}

// NewJournalHandler returns a handler that logs to the journal by its native protocol
// (systemd.journal-fields(7)). The priority is that of the level, the time the journal's own. The
// message ends with the attributes as key=value; each is a field besides, by its key in capitals
// (pod: POD, those of groups GROUP_KEY), so that `journalctl POD=default/web` finds it.
func NewJournalHandler(cfg JournalConfig) slog.Handler {
	if cfg.Send == nil {
		cfg.Send = journal.Send
	}
	out := &journalOut{JournalConfig: cfg}
	return &journalHandler{out: out, text: slog.NewTextHandler(&out.line, &slog.HandlerOptions{Level: cfg.Level, ReplaceAttr: withoutHead})}
}

// withoutHead leaves out what each line of text begins with: the journal has it otherwise.
func withoutHead(groups []string, a slog.Attr) slog.Attr {
	_, level := a.Value.Any().(slog.Level)
	if len(groups) == 0 && (a.Key == slog.LevelKey && level || a.Key == slog.MessageKey && a.Value.String() == "") {
		return slog.Attr{}
	}
	return a
}

// journalOut is what all handlers of one log share.
type journalOut struct {
	JournalConfig
	mu   sync.Mutex
	line bytes.Buffer // guarded by mu
}

type journalHandler struct {
	out    *journalOut
	text   slog.Handler // writes attributes to out.line
	group  string       // before the names of fields; "" or ends with _
	fields map[string]string
}

// Enabled implements slog.Handler.
func (h *journalHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.text.Enabled(ctx, level)
}

// WithAttrs implements slog.Handler.
func (h *journalHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	next := *h
	next.text, next.fields = h.text.WithAttrs(attrs), maps.Clone(h.fields)
	if next.fields == nil {
		next.fields = map[string]string{}
	}
	for _, a := range attrs {
		addField(next.fields, h.group, a)
	}
	return &next
}

// WithGroup implements slog.Handler.
func (h *journalHandler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	next := *h
	next.text, next.group = h.text.WithGroup(name), h.group+name+"_"
	return &next
}

// Handle implements slog.Handler. What the journal's socket does not take is written to the stream,
// as while journald starts anew.
func (h *journalHandler) Handle(ctx context.Context, r slog.Record) error {
	attrs := slog.Record{Level: r.Level}
	fields := maps.Clone(h.fields)
	if fields == nil {
		fields = map[string]string{}
	}
	r.Attrs(func(a slog.Attr) bool {
		attrs.AddAttrs(a)
		addField(fields, h.group, a)
		return true
	})
	rest, err := h.render(ctx, attrs)
	if err != nil {
		return err
	}
	message := strings.TrimSpace(r.Message + " " + rest)
	if err := h.out.Send(message, priority(r.Level), fields); err == nil {
		return nil
	}
	_, err = io.WriteString(h.out.Stream, Prefix(r.Level)+inOneLine.Replace(message)+"\n")
	return err
}

// inOneLine leaves nothing in a text that ends a line of the stream: what follows would be an entry
// of its own, of any level.
var inOneLine = strings.NewReplacer("\n", " ", "\r", " ", "\x00", " ")

// render returns the attributes as text.
func (h *journalHandler) render(ctx context.Context, attrs slog.Record) (string, error) {
	h.out.mu.Lock()
	defer h.out.mu.Unlock()
	h.out.line.Reset()
	err := h.text.Handle(ctx, attrs)
	return strings.TrimSpace(h.out.line.String()), err
}

// addField adds an attribute, or those of a group, to the fields.
func addField(fields map[string]string, group string, a slog.Attr) {
	value := a.Value.Resolve()
	if value.Kind() == slog.KindGroup {
		if a.Key != "" {
			group += a.Key + "_"
		}
		for _, inner := range value.Group() {
			addField(fields, group, inner)
		}
		return
	}
	if name := fieldName(group + a.Key); name != "" {
		fields[name] = value.String()
	}
}

// maxFieldName is how long the name of a field may be; journald drops longer ones.
const maxFieldName = 64

// fieldName makes a name of a field: capitals, digits and _, of which the first is a letter; "" is
// for those that would be the message's own.
func fieldName(key string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, key)
	name = strings.TrimLeft(name, "_0123456789")
	name = name[:min(len(name), maxFieldName)]
	if name == "MESSAGE" || name == "PRIORITY" {
		return ""
	}
	return name
}

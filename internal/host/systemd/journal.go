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

// IsJournal reports whether w is connected to systemd's journal: it is the stream with the device
// and inode of JOURNAL_STREAM, as in a service with StandardError=journal (systemd.exec(5)).
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

// Prefix returns the level prefix for a line on a stream of the journal: SyslogLevelPrefix= of
// systemd.exec(5), sd-daemon(3).
func Prefix(level slog.Level) string { return fmt.Sprintf("<%d>", priority(level)) }

// priority returns the syslog priority of the level.
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

// JournalConfig configures a journal handler.
type JournalConfig struct {
	Level slog.Leveler
	// Stream receives entries, one line each, that Send failed to send.
	Stream io.Writer
	// Send sends an entry to the journal; nil means the journal's socket.
	Send func(message string, p journal.Priority, fields map[string]string) error
}

// NewJournalHandler returns a handler that logs to the journal with its native protocol
// (systemd.journal-fields(7)). The priority is that of the level, the time that of the journal. The
// message ends with the attributes as key=value. Each attribute is also a field, with its key in
// capitals (pod: POD, in groups GROUP_KEY), so that `journalctl POD=default/web` finds it.
func NewJournalHandler(cfg JournalConfig) slog.Handler {
	if cfg.Send == nil {
		cfg.Send = journal.Send
	}
	out := &journalOut{JournalConfig: cfg}
	return &journalHandler{out: out, text: slog.NewTextHandler(&out.line, &slog.HandlerOptions{Level: cfg.Level, ReplaceAttr: withoutHead})}
}

// withoutHead removes the level and the empty message, which the journal stores separately.
func withoutHead(groups []string, a slog.Attr) slog.Attr {
	_, level := a.Value.Any().(slog.Level)
	if len(groups) == 0 && (a.Key == slog.LevelKey && level || a.Key == slog.MessageKey && a.Value.String() == "") {
		return slog.Attr{}
	}
	return a
}

// journalOut is shared by all handlers of one log.
type journalOut struct {
	JournalConfig
	mu   sync.Mutex
	line bytes.Buffer // guarded by mu
}

type journalHandler struct {
	out    *journalOut
	text   slog.Handler // writes attributes to out.line
	group  string       // prefix of field names; "" or ends with _
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

// Handle implements slog.Handler. If Send fails, as during a restart of journald, it writes the
// entry to the stream.
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

// inOneLine replaces line terminators of the stream: text after them would be a separate entry of
// any level.
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

// maxFieldName is the maximum length of a field name; journald drops fields with longer ones.
const maxFieldName = 64

// fieldName converts a key to a field name: capitals, digits and _, starting with a letter; "" for
// the fields of the message itself.
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

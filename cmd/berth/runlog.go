package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"gopkg.in/natefinch/lumberjack.v2"

	"berth/internal/host/systemd"
)

// The bounds of the agent's own log.
const (
	logMegabytes = 10
	logBackups   = 3
)

// newTextLog returns a log of lines of text, or of entries of systemd's journal where out goes
// there.
func newTextLog(out io.Writer, level slog.Leveler) *slog.Logger {
	if systemd.IsJournal(out) {
		return slog.New(systemd.NewJournalHandler(systemd.JournalConfig{Level: level, Stream: out}))
	}
	return slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: level}))
}

// newRotatedFile returns a log file of bounded size.
func newRotatedFile(path string) (io.WriteCloser, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, fmt.Errorf("log file: %w", err)
	}
	f := &lumberjack.Logger{Filename: path, MaxSize: logMegabytes, MaxBackups: logBackups}
	if _, err := f.Write(nil); err != nil { // opens it: a path that cannot be written must not be found out by silence
		return nil, fmt.Errorf("log file: %w", err)
	}
	return f, nil
}

// levelValue is a flag that takes a level of the log by its name.
type levelValue slog.Level

// Set implements pflag.Value.
func (v *levelValue) Set(s string) error {
	levels := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}
	level, ok := levels[strings.ToLower(s)]
	if !ok {
		return errors.New("must be debug, info, warn or error")
	}
	*v = levelValue(level)
	return nil
}

// String implements pflag.Value.
func (v *levelValue) String() string { return strings.ToLower(slog.Level(*v).String()) }

// Type implements pflag.Value.
func (v *levelValue) Type() string { return "level" }

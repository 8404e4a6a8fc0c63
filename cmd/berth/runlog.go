package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"gopkg.in/natefinch/lumberjack.v2"

	"berth/internal/host/systemd"
)

// The bounds of the agent's own log.
const (
	logMegabytes = 10
	logBackups   = 3
)

// outputs are where berth run says what: the lines of its pods and the agent's log never get into
// each other's way.
type outputs struct {
	lines   io.Writer // of pods, where no table is redrawn
	logFile string    // "" logs to errOut
	own     string    // the folder of a log file that the agent chose, which goes with its folders
	errOut  io.Writer
}

// computeOutputs chooses them. systemd's journal gets the log alone; a terminal, and whatever
// standard output and standard error have in common, the pods alone.
func computeOutputs(f runFlags, rootDir string, s streams) outputs {
	o := outputs{lines: s.out, logFile: f.logFile, errOut: s.errOut}
	switch {
	case systemd.IsJournal(s.out):
		o.lines = io.Discard
	case o.logFile == "" && (terminalOf(s.out) != nil || isSameFile(s.out, s.errOut)):
		o.own = rootDir
		o.logFile = filepath.Join(rootDir, agentLog)
	}
	return o
}

// agentLog is the name of the agent's log in the root directory.
const agentLog = "berth.log"

// isSameFile reports whether what is written to the one is read between what is written to the
// other.
func isSameFile(a, b io.Writer) bool {
	x, ok := a.(*os.File)
	y, isFile := b.(*os.File)
	if !ok || !isFile {
		return false
	}
	one, err := x.Stat()
	two, otherErr := y.Stat()
	return err == nil && otherErr == nil && os.SameFile(one, two)
}

// openLog opens the agent's log, and returns what closes it.
func (o outputs) openLog(level slog.Leveler) (*slog.Logger, func() error, error) {
	if o.logFile == "" {
		return newTextLog(o.errOut, level), func() error { return nil }, nil
	}
	file, err := newRotatedFile(o.logFile)
	if err != nil {
		return nil, nil, err
	}
	return newTextLog(file, level), file.Close, nil
}

// removeLog removes a log file that the agent chose, with what it was rotated into, and its folder
// if nothing else is in it.
func (o outputs) removeLog() error {
	if o.own == "" {
		return nil
	}
	name := strings.TrimSuffix(agentLog, filepath.Ext(agentLog))
	files, err := filepath.Glob(filepath.Join(o.own, name+"*"+filepath.Ext(agentLog)))
	for _, file := range files {
		err = errors.Join(err, os.Remove(file))
	}
	if rmErr := os.Remove(o.own); rmErr != nil && !errors.Is(rmErr, fs.ErrNotExist) && !errors.Is(rmErr, syscall.ENOTEMPTY) {
		err = errors.Join(err, rmErr)
	}
	return err
}

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

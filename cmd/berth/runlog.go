package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"gopkg.in/natefinch/lumberjack.v2"
)

// The bounds of the agent's own log.
const (
	logMegabytes = 10
	logBackups   = 3
)

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

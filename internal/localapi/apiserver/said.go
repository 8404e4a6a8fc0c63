package apiserver

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
)

// maxLine is the maximum size of a logged line, in bytes. The rest is truncated.
const maxLine = 4 << 10

// lastWords logs a child's standard error, and stores what may explain its exit.
type lastWords struct {
	log *slog.Logger

	mu    sync.Mutex
	line  []byte // guarded by mu; incomplete line
	last  string // guarded by mu; the last line
	crash string // guarded by mu; the first line of a panic or fatal error
}

// Write receives the child's standard error.
func (s *lastWords) Write(p []byte) (int, error) {
	s.mu.Lock()
	var lines []string
	for rest := p; len(rest) > 0; {
		text, after, whole := bytes.Cut(rest, []byte("\n"))
		s.line = append(s.line, text[:min(len(text), maxLine-len(s.line))]...)
		if whole {
			lines = append(lines, string(s.line))
			s.keep()
		}
		rest = after
	}
	s.mu.Unlock()
	for _, line := range lines {
		s.log.Info("the API writer of the local API says", "line", line)
	}
	return len(p), nil
}

// keep records the complete line. mu is held.
func (s *lastWords) keep() {
	line := strings.TrimSpace(string(s.line))
	s.line = s.line[:0]
	if line == "" {
		return
	}
	s.last = line
	if s.crash == "" && (strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ")) {
		s.crash = line
	}
}

// explain returns how a child exited, with the exceeded limit or its last output.
func (s *lastWords) explain(ended, exceeded error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.line) > 0 {
		s.keep()
	}
	how := "exit status 0"
	if ended != nil {
		how = ended.Error()
	}
	switch {
	case exceeded != nil:
		return fmt.Errorf("the API writer ended: %s: %w", how, exceeded)
	case s.crash != "":
		return fmt.Errorf("the API writer ended: %s: %s", how, s.crash)
	case s.last != "":
		return fmt.Errorf("the API writer ended: %s: it last said %q", how, s.last)
	}
	return errors.New("the API writer ended: " + how)
}

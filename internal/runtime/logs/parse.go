package logs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// entry is one line of a log file: a line of the container's output, or a part of one.
type entry struct {
	time   time.Time
	stream Stream
	// partial: the container's line continues in the stream's next entry, so no newline is printed.
	partial bool
	text    []byte // a view of the parsed line
}

// parse parses a line without its newline, in CRI's format or in Docker's JSON.
func parse(line []byte) (entry, error) {
	if isJSON(line) {
		return parseJSON(line)
	}
	return parseCRI(line)
}

// isJSON reports whether the line can only be Docker's: CRI's begin with a digit.
func isJSON(line []byte) bool { return len(line) > 0 && line[0] == '{' }

// parseCRI parses "<RFC3339Nano> <stdout|stderr> <P|F>[:tags] <text>" (CRI API, "Container Log
// Format"). Without a text the last blank may be missing.
func parseCRI(line []byte) (entry, error) {
	stamp, rest, ok := bytes.Cut(line, []byte{' '})
	if !ok {
		return entry{}, errors.New("log line has no stream")
	}
	t, err := time.Parse(time.RFC3339Nano, string(stamp))
	if err != nil {
		return entry{}, fmt.Errorf("log line has no time: %w", err)
	}
	stream, rest, ok := bytes.Cut(rest, []byte{' '})
	if !ok {
		return entry{}, errors.New("log line has no tag")
	}
	e := entry{time: t, stream: Stream(stream)}
	if e.stream != Stdout && e.stream != Stderr {
		return entry{}, fmt.Errorf("log line is of an unknown stream %q", stream)
	}
	tags, text, _ := bytes.Cut(rest, []byte{' '})
	switch first, _, _ := bytes.Cut(tags, []byte{':'}); string(first) {
	case "P":
		e.partial = true
	case "F":
	default:
		return entry{}, fmt.Errorf("log line has an unknown tag %q", tags)
	}
	e.text = text
	return e, nil
}

// parseJSON parses {"log":"…","stream":"stdout","time":"…"} (Docker, "JSON File logging driver"),
// whose log ends with a newline unless the line continues.
func parseJSON(line []byte) (entry, error) {
	var l struct {
		Log    string    `json:"log"`
		Stream Stream    `json:"stream"`
		Time   time.Time `json:"time"`
	}
	if err := json.Unmarshal(line, &l); err != nil {
		return entry{}, fmt.Errorf("log line is not of Docker's format: %w", err)
	}
	if l.Stream != Stdout && l.Stream != Stderr {
		return entry{}, fmt.Errorf("log line is of an unknown stream %q", l.Stream)
	}
	text, full := bytes.CutSuffix([]byte(l.Log), []byte{'\n'})
	return entry{time: l.Time, stream: l.Stream, partial: !full, text: text}, nil
}

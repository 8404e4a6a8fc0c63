package node

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"testing"

	"berth/internal/cluster/kube"
)

// A failure is logged once for each cause, and not at all if the owner of the transport has.
func TestComplaint(t *testing.T) {
	reported := fmt.Errorf("get node: %w", kube.ReportedError{Err: errors.New("damaged")})
	away := errors.New("away")
	for _, c := range []struct {
		tries []error
		want  string
	}{
		{[]error{nil, nil}, ""},
		{[]error{away, away, nil, nil}, "WARN INFO"},
		{[]error{reported, reported, nil}, ""},
		{[]error{reported, away, away, nil}, "WARN INFO"},
		{[]error{away, reported, nil, away}, "WARN INFO WARN"},
	} {
		var log bytes.Buffer
		trouble := complaint{log: slog.New(slog.NewTextHandler(&log, nil)), what: "renew"}
		for _, err := range c.tries {
			trouble.note(err)
		}
		if got := strings.Join(regexp.MustCompile("WARN|INFO").FindAllString(log.String(), -1), " "); got != c.want {
			t.Errorf("%v: logged %s, want %s", c.tries, log.String(), c.want)
		}
	}
}

package nodelogs

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// The bounds of a query.
const (
	maxServices    = 4
	maxServiceName = 256
	maxTailLines   = 100_000
	maxPattern     = 1024
)

// serviceName matches valid names of services.
var serviceName = regexp.MustCompile(`^[a-zA-Z0-9\-_.:@]+$`)

// Query selects a log of the node, and its lines. ParseQuery creates one, Validate validates it.
type Query struct {
	// Services are looked up in the journal, and otherwise among the files. File is a file below
	// the log directory. Exactly one of the two is set.
	Services []string
	File     string
	// Since and Until exclude older and newer lines; zero: none.
	Since, Until time.Time
	// Boot is 0 for the current boot, -1 for the previous one; nil: all.
	Boot *int
	// Pattern is a case-sensitive regular expression that lines must match; "": all lines.
	Pattern string
	// TailLines selects only the last lines; nil: all.
	TailLines *int
}

// ParseQuery parses the query of a URL. The error names the invalid parameter.
func ParseQuery(values url.Values) (Query, error) {
	q := Query{Pattern: values.Get("pattern")}
	for _, v := range values["query"] {
		if !strings.ContainsRune(v, '/') {
			q.Services = append(q.Services, v)
			continue
		}
		if q.File != "" {
			return q, fmt.Errorf("query: %q and %q: one file at a time", q.File, v)
		}
		q.File = v
	}
	var errs []error
	for name, into := range map[string]*time.Time{"sinceTime": &q.Since, "untilTime": &q.Until} {
		if v := values.Get(name); v != "" {
			t, err := time.Parse(time.RFC3339, v)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %q is not a time like 2006-01-02T15:04:05Z", name, v))
			}
			*into = t
		}
	}
	for name, into := range map[string]**int{"boot": &q.Boot, "tailLines": &q.TailLines} {
		if v := values.Get(name); v != "" {
			n, err := strconv.Atoi(v)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %q is not a whole number", name, v))
			}
			*into = &n
		}
	}
	return q, errors.Join(errs...)
}

// Validate returns the errors of a parsed query.
func (q Query) Validate() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	switch {
	case len(q.Services) == 0 && q.File == "":
		fail("query: names no service and no file")
	case len(q.Services) > 0 && q.File != "":
		fail("query: services and a file cannot be asked for together")
	case len(q.Services) > maxServices:
		fail("query: %d services, at most %d are possible", len(q.Services), maxServices)
	}
	for _, s := range q.Services {
		if len(s) > maxServiceName || !serviceName.MatchString(s) || strings.Trim(s, ".") == "" {
			fail("query: %.*q is no name of a service: letters, digits and - _ . : @, at most %d", maxServiceName, s, maxServiceName)
		}
	}
	if q.File != "" {
		if _, err := localName(q.File); err != nil {
			fail("query: %w", err)
		}
		if !q.Since.IsZero() || !q.Until.IsZero() || q.Boot != nil {
			fail("query: sinceTime, untilTime and boot are for services in the journal; the lines of a file have no time that could be compared")
		}
	}
	if !q.Since.IsZero() && !q.Until.IsZero() && q.Until.Before(q.Since) {
		fail("untilTime: %s is before sinceTime", q.Until.Format(time.RFC3339))
	}
	if q.Boot != nil && *q.Boot > 0 {
		fail("boot: %d: must be 0 for this boot, or less for one before", *q.Boot)
	}
	if q.TailLines != nil && (*q.TailLines < 0 || *q.TailLines > maxTailLines) {
		fail("tailLines: %d: must be from 0 to %d", *q.TailLines, maxTailLines)
	}
	if len(q.Pattern) > maxPattern || strings.ContainsAny(q.Pattern, "\x00\n\r") {
		fail("pattern: must be one line of at most %d bytes", maxPattern)
	}
	return errors.Join(errs...)
}

// localName returns a file's name relative to the log directory. The directory is protected
// independently; this makes the error clear.
func localName(name string) (string, error) {
	local := strings.TrimLeft(name, "/")
	if strings.ContainsRune(local, 0) || !filepath.IsLocal(local) {
		return "", fmt.Errorf("%q is not below the log folder", name)
	}
	return filepath.Clean(local), nil
}

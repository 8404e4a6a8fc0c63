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

// serviceName is what a service may be called.
var serviceName = regexp.MustCompile(`^[a-zA-Z0-9\-_.:@]+$`)

// Query says which log of the node is wanted, and which of its lines. ParseQuery makes one,
// Validate checks it.
type Query struct {
	// Services are looked for in the journal, and those that it does not have among the files. File
	// is one file below the log folder. One of the two is given.
	Services []string
	File     string
	// Since and Until leave out what is older or newer; zero: nothing.
	Since, Until time.Time
	// Boot is 0 for the boot of now, -1 for the one before; nil: all.
	Boot *int
	// Pattern is a regular expression that lines must match, case and all; "": all do.
	Pattern string
	// TailLines leaves only the last lines; nil: all.
	TailLines *int
}

// ParseQuery reads the query of a URL. The error names the parameter that cannot be understood.
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

// Validate returns what is wrong with a query that could be understood.
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

// localName returns a file's name relative to the log folder. The folder's own guard does not
// depend on it; it makes the error a clear one.
func localName(name string) (string, error) {
	local := strings.TrimLeft(name, "/")
	if strings.ContainsRune(local, 0) || !filepath.IsLocal(local) {
		return "", fmt.Errorf("%q is not below the log folder", name)
	}
	return filepath.Clean(local), nil
}

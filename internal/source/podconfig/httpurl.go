package podconfig

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"berth/internal/source/manifest"
)

// page is one URL with its state. The fields from answered on belong to the goroutine of follow.
type page struct {
	// name is the URL without user, password and fragment. It is used in messages and in its pods'
	// identity.
	name string
	url  string // the requested URL

	answered bool // with status 200, since the agent started
	standing      // of the last such response; before that, the persisted one
	validators
	sum      [32]byte // of the last such response
	failures int      // consecutive
}

// standing is what a page contributes to the source.
type standing struct {
	manifest.Decoded
	known bool // the page's pods are known, so it does not delay SeenAllSources
}

// validators make a request conditional (RFC 9110, section 8.8).
type validators struct{ etag, lastModified string }

// CheckPaths validates Config.Paths like New. The error contains no credentials.
func CheckPaths(paths []string) error {
	_, urls := splitPaths(paths)
	_, err := parseURLs(urls)
	return err
}

func splitPaths(paths []string) (files, urls []string) {
	for _, p := range paths {
		if strings.Contains(p, "://") {
			urls = append(urls, p)
		} else {
			files = append(files, p)
		}
	}
	return files, urls
}

// parseURL returns the page of a URL. Its errors contain no credentials.
func parseURL(given string) (*page, error) {
	u, err := url.Parse(given)
	switch {
	case err != nil || u.Host == "" || u.Opaque != "":
		return nil, fmt.Errorf("%q is no URL: write https://host/path", hideCredentials(given))
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("%q: manifests are read from files, folders, http:// and https:// URLs, not %s://", hideCredentials(given), u.Scheme)
	}
	u.Fragment, u.RawFragment = "", ""
	p := &page{url: u.String()}
	u.User = nil
	p.name = u.String()
	return p, nil
}

var credentials = regexp.MustCompile(`//.*@`)

func hideCredentials(text string) string { return credentials.ReplaceAllString(text, "//***@") }

// parseURLs returns the pages of the URLs without duplicates.
func parseURLs(given []string) ([]*page, error) {
	var pages []*page
	var errs []error
	for _, g := range given {
		p, err := parseURL(g)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if !slices.ContainsFunc(pages, func(other *page) bool { return other.name == p.name }) {
			pages = append(pages, p)
		}
	}
	return pages, errors.Join(errs...)
}

// checkHeader validates the header. Its errors contain no values.
func checkHeader(h http.Header) error {
	for name, values := range h {
		if !httpguts.ValidHeaderFieldName(name) {
			return fmt.Errorf("header %q: this is no name of a header", name)
		}
		for _, v := range values {
			if !httpguts.ValidHeaderFieldValue(v) {
				return fmt.Errorf("header %s: a value has characters that cannot be sent, such as a line break", name)
			}
		}
	}
	return nil
}

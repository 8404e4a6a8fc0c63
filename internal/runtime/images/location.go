package images

import (
	"fmt"
	"path"
	"strings"

	"github.com/distribution/reference"
)

// defaultRegistry is the host in docker configs for images without registry.
const defaultRegistry = "index.docker.io"

// location is where an image is pulled from, or an image pattern of credentials. Each part of a
// pattern's host may contain the wildcards of path.Match.
type location struct {
	host []string // its dot-separated parts; an IPv6 address is one
	port string   // "" for none
	path string   // begins with a slash unless it is ""
}

// locate returns the location of a named image.
func locate(image reference.Named) location {
	l, _ := parseLocation(image.Name()) // a name has no wildcards that could be malformed
	return l
}

// parseLocation parses a pattern: a key of a docker config, or one of a credential provider. A
// scheme and the API version that docker login writes ("https://index.docker.io/v1/") are ignored.
func parseLocation(pattern string) (location, error) {
	rest := strings.TrimPrefix(strings.TrimPrefix(pattern, "https://"), "http://")
	host, below, _ := strings.Cut(rest, "/")
	if version, more, ok := strings.Cut(below, "/"); ok && (version == "v1" || version == "v2") {
		below = more
	}
	l := location{path: strings.TrimRight("/"+below, "/")}
	host = strings.ToLower(host)
	switch end := strings.LastIndexByte(host, ']'); {
	case strings.HasPrefix(host, "[") && end > 0:
		l.host, l.port = []string{host[:end+1]}, strings.TrimPrefix(host[end+1:], ":")
		return l, nil // brackets are not wildcards here
	default:
		host, l.port, _ = strings.Cut(host, ":")
	}
	if host == "" {
		return l, fmt.Errorf("%q: names no registry", pattern)
	}
	if host == "docker.io" {
		host = defaultRegistry
	}
	l.host = strings.Split(host, ".")
	for _, part := range l.host {
		if _, err := path.Match(part, ""); err != nil || part == "" {
			return l, fmt.Errorf("%q: the host is malformed at %q", pattern, part)
		}
	}
	return l, nil
}

// matches reports whether the pattern matches the image: each part of the host matches, the port is
// equal, and the pattern's path is a prefix of the image's
// (https://kubernetes.io/docs/tasks/administer-cluster/kubelet-credential-provider/).
func (pattern location) matches(image location) bool {
	if len(pattern.host) != len(image.host) || pattern.port != image.port || !strings.HasPrefix(image.path, pattern.path) {
		return false
	}
	for i, part := range pattern.host {
		if part == image.host[i] {
			continue
		}
		if ok, err := path.Match(part, image.host[i]); !ok || err != nil {
			return false
		}
	}
	return true
}

func (l location) registry() string {
	host := strings.Join(l.host, ".")
	if l.port != "" {
		host += ":" + l.port
	}
	return host
}

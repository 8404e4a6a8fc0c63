package cri

import (
	"fmt"
	"regexp"
	"runtime"
)

// plainCalls are the calls that mostly fail because of user errors.
var plainCalls = map[string]bool{"RunPodSandbox": true, "CreateContainer": true, "StartContainer": true, "PullImage": true}

// plainText explains a runtime error to users: the cause and the remedy.
type plainText struct {
	pattern *regexp.Regexp
	text    string // "$1" is the first submatch, "$2" the second
}

// plainTexts are tried in order; the first match is used.
var plainTexts = []plainText{
	// A container that does not start.
	{regexp.MustCompile(`exec: "([^"]+)": executable file not found in \$PATH`), `the image has no program "$1": correct the container's command`},
	{regexp.MustCompile(`exec: "([^"]+)": (?:stat \S+: )?no such file or directory`), `the image has no program "$1", or not the interpreter or loader that it needs: correct the container's command, or the image`},
	{regexp.MustCompile(`exec: "([^"]+)": (?:permission denied|is a directory)`), `"$1" is no program that the container may run: it is a folder, or has no right to be run: correct the container's command, or the image`},
	{regexp.MustCompile(`exec format error`), "the program is made for other processors than this machine's (" + runtime.GOARCH + "), or is a script without #! in its first line: use an image for " + runtime.GOARCH},
	{regexp.MustCompile(`(?:unable to apply cgroup configuration: mkdir \S+: cannot allocate memory|container init was OOM-killed)`), "the memory limit is too low to start a container at all: raise resources.limits.memory"},
	// A container that the runtime does not create.
	{regexp.MustCompile(`path "([^"]+)" is mounted on "([^"]+)" but it is not a shared (?:or slave )?mount`), `mountPropagation of the volume at $1 needs a shared mount on the host: run "mount --make-rshared $2" there`},
	{regexp.MustCompile(`failed to reserve (sandbox|container) name ".*is reserved for`), "an earlier call to create this $1 still runs in the runtime, as it does while a network plugin or storage hangs: end what hangs; the pod is tried again"},
	// An image that cannot be pulled.
	{regexp.MustCompile(`"https://([^/"]+)/[^"]*": (?:http: server gave HTTP response to HTTPS client|tls: first record does not look like a TLS handshake)`), "the registry $1 speaks HTTP, not HTTPS: " + registryHint + ` with server = "http://$1"`},
	{regexp.MustCompile(`"https?://((?:localhost|127\.[0-9.]+|\[::1\])(?::\d+)?)/[^"]*": dial tcp \S+: connect: connection refused`), `there is no registry at $1, and this machine does not have the image: start the registry, or bring the image with "berth image import"`},
	{regexp.MustCompile(`"https?://([^/"]+)/[^"]*": dial tcp: lookup .*(?:no such host|server misbehaving)`), "the name of the registry $1 cannot be looked up: correct the image's name, or the machine's DNS"},
	{regexp.MustCompile(`"https://([^/"]+)/[^"]*": .*x509: certificate signed by unknown authority`), "the certificate of the registry $1 is not of an authority that this machine trusts: " + registryHint + " with that authority (ca)"},
}

const registryHint = "tell the runtime in a hosts.toml for it (docs/images.md#registries)"

// plain prefixes the runtime's message with its explanation, if there is one.
func plain(text string) string {
	for _, p := range plainTexts {
		if m := p.pattern.FindStringSubmatchIndex(text); m != nil {
			meaning := p.pattern.ExpandString(nil, p.text, text, m)
			return fmt.Sprintf("%s (%s)", meaning, text)
		}
	}
	return text
}

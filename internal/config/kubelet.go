package config

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// EmbeddedRuntime is the containerRuntimeEndpoint of the embedded runtime.
const EmbeddedRuntime = "embedded"

// Kubelet is the complete configuration of `berth kubelet`: the KubeletConfiguration in force, and
// the values that only flags have. Load creates it; it is immutable afterwards.
type Kubelet struct {
	KubeletConfiguration

	// ConfigFile and ConfigDir are the values of --config and --config-dir, "" for none.
	ConfigFile, ConfigDir string

	// Kubeconfig is the path of the API server's kubeconfig; "" is standalone, without an API
	// server. BootstrapKubeconfig is used to request a client certificate while Kubeconfig does not
	// exist or is invalid.
	Kubeconfig, BootstrapKubeconfig string
	// RootDir is the directory of the agent's files and the pods' volumes; CertDir that of its
	// certificates. Both are absolute.
	RootDir, CertDir string

	// HostnameOverride replaces the host's name; see NodeName.
	HostnameOverride string
	// NodeIPs are the addresses of --node-ip: none, one, or one per family. An unspecified one
	// (0.0.0.0, ::) selects the default address of that family.
	NodeIPs []netip.Addr
	// NodeLabels are added to the Node at registration.
	NodeLabels map[string]string
	// CloudProvider is "" or "external".
	CloudProvider string

	// RuntimeCgroups is the cgroup of the container runtime, "" if unknown.
	RuntimeCgroups string
	// RuntimeHandler is the runtime handler of pods without a RuntimeClass; "": the runtime's
	// default.
	RuntimeHandler string
	// SELinux makes the embedded runtime label containers; a foreign one has its own configuration.
	SELinux bool
	// ImagePullProgressDeadline makes the embedded runtime cancel pulls without sufficient
	// progress; a foreign one has its own configuration.
	ImagePullProgressDeadline time.Duration
	// KeepObjects selects the offline cache of the API server, for a start without it.
	KeepObjects KeepObjects
	// LockFile is locked while the agent runs, "" for none; with ExitOnLockContention the agent
	// exits when another process opens or removes it.
	LockFile             string
	ExitOnLockContention bool
	// ImageCredentialProviderConfig is a file or directory, ImageCredentialProviderBinDir the
	// directory of its programs.
	ImageCredentialProviderConfig, ImageCredentialProviderBinDir string

	// MinimumContainerTTL, MaxDeadContainersPerContainer and MaxDeadContainers limit how long and
	// how many exited containers are kept; a negative number is unlimited.
	MinimumContainerTTL                              time.Duration
	MaxDeadContainersPerContainer, MaxDeadContainers int32

	// Origins are the origins of the values.
	Origins Origins
	// Warnings are for the log, in the order of detection: unknown fields, flags and gates without
	// effect.
	Warnings []string

	// Flags are the values of the flags that are not fields of the KubeletConfiguration.
	Flags []Field
}

// Standalone reports whether the agent has no API server.
func (k *Kubelet) Standalone() bool { return k.Kubeconfig == "" }

// NodeName returns the node name for a host name.
func (k *Kubelet) NodeName(hostname string) (string, error) {
	name, from := hostname, "the host's name"
	if k.HostnameOverride != "" {
		name, from = k.HostnameOverride, "--hostname-override"
	}
	name = strings.ToLower(strings.TrimSpace(name))
	if name == "" {
		return "", errors.New("the host has no name; give the node one with --hostname-override")
	}
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return "", fmt.Errorf("%s %q cannot name a node: %s", from, name, strings.Join(problems, "; "))
	}
	return name, nil
}

// RuntimeEndpoint returns the CRI socket, or "" for the embedded runtime.
func (k *Kubelet) RuntimeEndpoint() string { return withoutEmbedded(k.ContainerRuntimeEndpoint) }

// ImageEndpoint returns the CRI socket of the image service, or "" for the embedded runtime.
func (k *Kubelet) ImageEndpoint() string { return withoutEmbedded(k.ImageServiceEndpoint) }

func withoutEmbedded(endpoint string) string {
	if endpoint == EmbeddedRuntime {
		return ""
	}
	return endpoint
}

// LogLevel returns the log level for a verbosity (--v): level N of klog is -N of slog, so that 4 is
// Debug. Below 4 it is Info.
func LogLevel(verbosity uint32) slog.Level {
	if verbosity < 4 {
		return slog.LevelInfo
	}
	return slog.Level(-int(min(verbosity, 100)))
}

// Field is one value of the configuration in force.
type Field struct {
	// Path is as in Origins.
	Path string
	// Value is as in JSON.
	Value  any
	Origin Origin
}

// Fields returns the values of the KubeletConfiguration in force, ordered by path; lists as a
// whole, maps by key.
func (k *Kubelet) Fields() ([]Field, error) {
	return k.fieldsOf(&k.KubeletConfiguration)
}

func (k *Kubelet) fieldsOf(c *KubeletConfiguration) ([]Field, error) {
	doc, err := toDocument(c)
	if err != nil {
		return nil, err
	}
	delete(doc, "apiVersion")
	delete(doc, "kind")
	var fields []Field
	visitFields(doc, func(path string, value any) {
		fields = append(fields, Field{Path: path, Value: value, Origin: k.Origins.Of(path)})
	})
	return fields, nil
}

// Settings returns the whole configuration for display: the flags that are not fields, with their
// dashes, and then the fields. Possible secrets in staticPodURL and its header are redacted.
func (k *Kubelet) Settings() ([]Field, error) {
	c := k.Redacted()
	fields, err := k.fieldsOf(&c)
	return slices.Concat(k.Flags, fields), err
}

// Redacted returns the KubeletConfiguration without possible secrets in staticPodURL and its
// header.
func (k *Kubelet) Redacted() KubeletConfiguration {
	c := k.KubeletConfiguration
	if u, err := url.Parse(c.StaticPodURL); err == nil {
		c.StaticPodURL = u.Redacted()
	}
	c.StaticPodURLHeader = maps.Clone(c.StaticPodURLHeader)
	for name := range c.StaticPodURLHeader {
		c.StaticPodURLHeader[name] = []string{"xxxxx"}
	}
	return c
}

// flagSettings returns the values of the flags that are not fields and do not just select
// configuration files.
func flagSettings(flags *Flags, origins Origins) []Field {
	var out []Field
	for _, f := range flags.All() {
		if f.Field != "" || f.Group == NoEffectGroup || f.Group == ConfigurationGroup {
			continue
		}
		name := "--" + f.Name
		out = append(out, Field{Path: name, Value: f.String(), Origin: origins.Of(name)})
	}
	return out
}

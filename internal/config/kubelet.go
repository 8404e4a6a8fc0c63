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

// EmbeddedRuntime as containerRuntimeEndpoint stands for the container runtime that berth brings
// along.
const EmbeddedRuntime = "embedded"

// Kubelet is everything that `berth kubelet` was told: the KubeletConfiguration in force, and what
// only flags can say. Load makes it; nothing changes it afterwards.
type Kubelet struct {
	KubeletConfiguration

	// ConfigFile and ConfigDir are the values of --config and --config-dir, "" for none.
	ConfigFile, ConfigDir string

	// Kubeconfig is how the API server is reached; "" is standalone: there is no API server.
	// BootstrapKubeconfig is used to ask for a client certificate while Kubeconfig does not exist
	// or is not valid.
	Kubeconfig, BootstrapKubeconfig string
	// RootDir holds the agent's files and the pods' volumes; CertDir its certificates. Both
	// absolute.
	RootDir, CertDir string

	// HostnameOverride replaces the host's name; see NodeName.
	HostnameOverride string
	// NodeIPs are the addresses given by --node-ip: none, one, or one of each family. An
	// unspecified one (0.0.0.0, ::) asks for the default address of that family.
	NodeIPs []netip.Addr
	// NodeLabels are added to the node when it is registered.
	NodeLabels map[string]string
	// CloudProvider is "" or "external".
	CloudProvider string

	// RuntimeCgroups is the cgroup of the container runtime, "" for wherever it is.
	RuntimeCgroups string
	// RuntimeHandler is the runtime's handler for pods that name no RuntimeClass; "": its own
	// choice.
	RuntimeHandler string
	// SELinux has the runtime inside label containers; another one has its own configuration.
	SELinux bool
	// ImagePullProgressDeadline ends pulls of the runtime inside that hardly come further; another
	// one has its own configuration.
	ImagePullProgressDeadline time.Duration
	// KeepObjects is what is kept on disk of the API server, for a start without it.
	KeepObjects KeepObjects
	// LockFile is held while the agent runs, "" for none; with ExitOnLockContention the agent ends
	// when somebody else wants it.
	LockFile             string
	ExitOnLockContention bool
	// ImageCredentialProviderConfig is a file or folder, ImageCredentialProviderBinDir the folder
	// of the programs that it names.
	ImageCredentialProviderConfig, ImageCredentialProviderBinDir string

	// MinimumContainerTTL, MaxDeadContainersPerContainer and MaxDeadContainers say how many dead
	// containers are kept, and for how long; a negative number is without a limit.
	MinimumContainerTTL                              time.Duration
	MaxDeadContainersPerContainer, MaxDeadContainers int32

	// Origins says where each value came from.
	Origins Origins
	// Warnings are for the log, in the order in which they were found: unknown fields, flags and
	// gates without effect.
	Warnings []string

	// Flags are the values of the flags that are no fields of the KubeletConfiguration.
	Flags []Field
}

// Standalone reports whether there is no API server.
func (k *Kubelet) Standalone() bool { return k.Kubeconfig == "" }

// NodeName returns the name of the node on a host of the given name.
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

// RuntimeEndpoint returns the CRI socket, or "" for the runtime that berth brings along.
func (k *Kubelet) RuntimeEndpoint() string { return withoutEmbedded(k.ContainerRuntimeEndpoint) }

// ImageEndpoint returns the CRI socket of the image service, or "" for the runtime that berth
// brings along.
func (k *Kubelet) ImageEndpoint() string { return withoutEmbedded(k.ImageServiceEndpoint) }

func withoutEmbedded(endpoint string) string {
	if endpoint == EmbeddedRuntime {
		return ""
	}
	return endpoint
}

// LogLevel returns the level that stands for a verbosity (--v): level N of klog is -N of slog, so
// that 4 is Debug. Below 4 it is Info.
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

// Fields returns the values of the KubeletConfiguration in force, in the order of their paths;
// lists as a whole, maps by key.
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

// Settings returns everything that was told, for people: the flags that are no fields, with their
// dashes, and then the fields. Secrets that staticPodURL and its header may hold are left out.
func (k *Kubelet) Settings() ([]Field, error) {
	c := k.Redacted()
	fields, err := k.fieldsOf(&c)
	return slices.Concat(k.Flags, fields), err
}

// Redacted returns the KubeletConfiguration without the secrets that staticPodURL and its header
// may hold.
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

// flagSettings returns the values of the flags that are no fields and that say more than which
// configuration is read.
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

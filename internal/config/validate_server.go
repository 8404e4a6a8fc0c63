package config

import (
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

const maxPort = 65535

func validateServers(c *check, k *Kubelet) {
	c.address("address", k.Address)
	c.address("healthzBindAddress", k.HealthzBindAddress)
	c.between("port", int64(k.Port), 1, maxPort)
	c.between("readOnlyPort", int64(k.ReadOnlyPort), 0, maxPort)
	c.between("healthzPort", int64(*k.HealthzPort), 0, maxPort)

	c.oneOf("authorization.mode", string(k.Authorization.Mode), string(KubeletAuthorizationModeAlwaysAllow), string(KubeletAuthorizationModeWebhook))
	c.notNegative("authentication.webhook.cacheTTL", k.Authentication.Webhook.CacheTTL.Duration)
	c.notNegative("authorization.webhook.cacheAuthorizedTTL", k.Authorization.Webhook.CacheAuthorizedTTL.Duration)
	c.notNegative("authorization.webhook.cacheUnauthorizedTTL", k.Authorization.Webhook.CacheUnauthorizedTTL.Duration)
	if k.Standalone() && *k.EnableServer {
		if *k.Authentication.Webhook.Enabled {
			c.fail("authentication.webhook.enabled", "needs an API server; give --kubeconfig, or set it to false")
		}
		if k.Authorization.Mode == KubeletAuthorizationModeWebhook {
			c.fail("authorization.mode", "Webhook needs an API server; give --kubeconfig, or set it to AlwaysAllow")
		}
	}

	if (k.TLSCertFile == "") != (k.TLSPrivateKeyFile == "") {
		c.fail("tlsCertFile", "goes with tlsPrivateKeyFile: set both or neither")
	}
	validateTLS(c, k)
	if k.ServerTLSBootstrap {
		c.needsGate("serverTLSBootstrap", "RotateKubeletServerCertificate")
	}
}

func orMeant(name string, known []string) string {
	if near := Nearest(name, known); near != "" {
		return "; did you mean " + near + "?"
	}
	return ""
}

func (c *check) address(path, value string) {
	if _, err := netip.ParseAddr(value); err != nil {
		c.fail(path, "%q is no IP address; write 0.0.0.0 or :: for all", value)
	}
}

func (c *check) url(path, value string) {
	if u, err := url.Parse(value); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		c.fail(path, "%q is no URL that begins with http:// or https://", credentials.ReplaceAllString(value, "//***@"))
	}
}

// credentials matches everything in a text that may be the user and password of a URL.
var credentials = regexp.MustCompile(`//.*@`)

// header checks HTTP headers of requests. Values are not shown: they may be tokens.
func (c *check) header(path string, header map[string][]string) {
	for _, name := range slices.Sorted(maps.Keys(header)) {
		at := fmt.Sprintf("%s[%s]", path, name)
		if !httpguts.ValidHeaderFieldName(name) {
			c.fail(at, "%q is no name of a header", name)
		}
		for _, v := range header[name] {
			if !httpguts.ValidHeaderFieldValue(v) {
				c.fail(at, "a value has characters that cannot be sent, such as a line break")
			}
		}
	}
}

// validateFlags checks the values that only flags have.
func validateFlags(c *check, k *Kubelet) {
	if k.BootstrapKubeconfig != "" && k.Kubeconfig == "" {
		c.fail("--bootstrap-kubeconfig", "needs --kubeconfig, the file that is written when the certificate has come")
	}
	if k.SELinux && k.RuntimeEndpoint() != "" {
		c.fail("--selinux", "is for the runtime inside berth (containerRuntimeEndpoint: embedded); another one has its own configuration (of containerd: enable_selinux)")
	}
	switch deadline := "--image-pull-progress-deadline"; {
	case k.ImagePullProgressDeadline <= 0:
		c.fail(deadline, "%s: must be more than 0", k.ImagePullProgressDeadline)
	case k.RuntimeEndpoint() != "" && k.Origins.Of(deadline).Kind != FromDefault:
		c.fail(deadline, "is for the runtime inside berth (containerRuntimeEndpoint: embedded); another one has its own configuration (of containerd: image_pull_progress_timeout)")
	}
	if !k.KeepObjects.IsValid() {
		c.fail("--keep-objects", "%q: must be %s, %s or %s", k.KeepObjects, KeepPods, KeepAll, KeepNothing)
	}
	if k.RootDir == "" {
		c.fail("--root-dir", `is empty; leave it out for /var/lib/kubelet`)
	}
	if k.CertDir == "" {
		c.fail("--cert-dir", `is empty; leave it out for /var/lib/kubelet/pki`)
	}
	if k.HostnameOverride != "" {
		if _, err := k.NodeName(""); err != nil {
			c.errs = append(c.errs, err)
		}
	}
	switch {
	case len(k.NodeIPs) > 2:
		c.fail("--node-ip", "%v are more than two", k.NodeIPs)
	case len(k.NodeIPs) == 2 && k.NodeIPs[0].Is4() == k.NodeIPs[1].Is4():
		c.fail("--node-ip", "%v and %v are of one family; give one of IPv4 and one of IPv6", k.NodeIPs[0], k.NodeIPs[1])
	}
	if p := k.CloudProvider; p != "" && p != "external" {
		c.fail("--cloud-provider", "%q is not supported any more: give external and run its cloud controller, or leave it out", p)
	}
	if k.ExitOnLockContention && k.LockFile == "" {
		c.fail("--exit-on-lock-contention", "needs --lock-file")
	}
	c.notNegative("--minimum-container-ttl-duration", k.MinimumContainerTTL)
	for _, key := range slices.Sorted(maps.Keys(k.NodeLabels)) {
		if problems := validation.IsQualifiedName(key); len(problems) > 0 {
			c.fail("--node-labels", "%q: %s", key, strings.Join(problems, "; "))
		} else if !mayLabelItself(key) {
			c.fail("--node-labels", "%q is reserved: of the names of Kubernetes a node may give itself those in %s, and %s", key,
				strings.Join(ownNamespaces, " and "), strings.Join(ownLabels, ", "))
		}
		if problems := validation.IsValidLabelValue(k.NodeLabels[key]); len(problems) > 0 {
			c.fail("--node-labels", "%s=%q: %s", key, k.NodeLabels[key], strings.Join(problems, "; "))
		}
	}
}

// ownLabels are the Kubernetes labels that a node may set on itself, besides those in ownNamespaces
// and below.
var ownLabels = []string{
	"beta.kubernetes.io/arch", "beta.kubernetes.io/instance-type", "beta.kubernetes.io/os",
	"failure-domain.beta.kubernetes.io/region", "failure-domain.beta.kubernetes.io/zone",
	"kubernetes.io/arch", "kubernetes.io/hostname", "kubernetes.io/os",
	"node.kubernetes.io/instance-type",
	"topology.kubernetes.io/region", "topology.kubernetes.io/zone",
}

var ownNamespaces = []string{"kubelet.kubernetes.io", "node.kubernetes.io"}

func mayLabelItself(key string) bool {
	namespace, _, qualified := strings.Cut(key, "/")
	within := func(domain string) bool { return namespace == domain || strings.HasSuffix(namespace, "."+domain) }
	if !qualified || !within("kubernetes.io") && !within("k8s.io") {
		return true
	}
	return slices.Contains(ownLabels, key) || slices.ContainsFunc(ownNamespaces, within)
}

func validateNode(c *check, k *Kubelet) {
	c.atLeast("kubeAPIBurst", int64(k.KubeAPIBurst), 0)
	c.atLeast("eventRecordQPS", int64(*k.EventRecordQPS), 0)
	c.atLeast("eventBurst", int64(k.EventBurst), 0)
	c.positive("nodeStatusUpdateFrequency", k.NodeStatusUpdateFrequency.Duration)
	c.positive("nodeStatusReportFrequency", k.NodeStatusReportFrequency.Duration)
	c.atLeast("nodeLeaseDurationSeconds", int64(k.NodeLeaseDurationSeconds), 1)
	c.atLeast("nodeStatusMaxImages", int64(*k.NodeStatusMaxImages), -1)
	c.oneOf("configMapAndSecretChangeDetectionStrategy", string(k.ConfigMapAndSecretChangeDetectionStrategy),
		string(GetChangeDetectionStrategy), string(TTLCacheChangeDetectionStrategy), string(WatchChangeDetectionStrategy))
	for i, taint := range k.RegisterWithTaints {
		path := fmt.Sprintf("registerWithTaints[%d]", i)
		for _, problem := range validation.IsQualifiedName(taint.Key) {
			c.fail(path+".key", "%q: %s", taint.Key, problem)
		}
		for _, problem := range validation.IsValidLabelValue(taint.Value) {
			c.fail(path+".value", "%q: %s", taint.Value, problem)
		}
		c.oneOf(path+".effect", string(taint.Effect), string(v1.TaintEffectNoSchedule), string(v1.TaintEffectPreferNoSchedule), string(v1.TaintEffectNoExecute))
	}
}

func validateRuntime(c *check, k *Kubelet) {
	c.endpoint("containerRuntimeEndpoint", k.ContainerRuntimeEndpoint)
	c.endpoint("imageServiceEndpoint", k.ImageServiceEndpoint)
	c.positive("runtimeRequestTimeout", k.RuntimeRequestTimeout.Duration)
}

func (c *check) endpoint(path, value string) {
	socket := strings.TrimPrefix(value, "unix://")
	if value != EmbeddedRuntime && !filepath.IsAbs(socket) {
		c.fail(path, "%q is no socket: write it as unix:///run/containerd/containerd.sock, or %q for the runtime inside this program", value, EmbeddedRuntime)
	}
}

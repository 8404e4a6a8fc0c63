package config

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// layers is a configuration that is being merged.
type layers struct {
	doc      document
	origins  Origins
	warnings []string
}

func (l *layers) merge(doc document, origin Origin) {
	mergePatch(l.doc, doc)
	l.origins.record(doc, origin)
}

// Load returns the configuration for parsed flags: defaults, overridden by the --config file, by
// the drop-ins of --config-dir, and by the flags; feature gates of the flag have the lowest
// precedence, as in the kubelet. Files are read now. The error joins all problems, each with its
// file or flag, its field, and the remedy.
func Load(flags *Flags) (*Kubelet, error) {
	k := &Kubelet{ConfigFile: flags.text("config"), ConfigDir: flags.text("config-dir")}
	l := &layers{doc: document{}, origins: Origins{}}
	if err := l.mergeFiles(k.ConfigFile, k.ConfigDir); err != nil {
		return nil, err
	}
	defaults := setDefaults
	if k.ConfigFile == "" {
		defaults = setLegacyDefaults
	}
	if err := l.mergeDefaults(defaults); err != nil {
		return nil, err
	}
	l.mergeFlags(flags)
	c, err := fromDocument(l.doc)
	if err != nil {
		return nil, err
	}
	if c.ImageServiceEndpoint == "" {
		c.ImageServiceEndpoint = c.ContainerRuntimeEndpoint
	}
	k.KubeletConfiguration, k.Origins = *c, l.origins
	wrong := k.setFlags(flags)
	k.Flags = flagSettings(flags, k.Origins)
	unheeded, err := k.unsupportedWarnings(flags)
	if err != nil {
		return nil, err
	}
	k.Warnings = slices.Concat(l.warnings, flagWarnings(flags), unheeded, gateWarnings(k.FeatureGates, k.Origins))
	if err := errors.Join(append(wrong, k.validate()...)...); err != nil {
		return nil, err
	}
	return k, nil
}

// mergeFiles merges the configuration file and the drop-ins; either may be "".
func (l *layers) mergeFiles(file, dir string) error {
	var errs []error
	read := func(kind OriginKind, path string) {
		doc, warnings, wrong := readFile(path)
		l.warnings = append(l.warnings, warnings...)
		if len(wrong) > 0 {
			errs = append(errs, wrong...)
			return
		}
		l.merge(doc, Origin{Kind: kind, Name: path})
	}
	if file != "" {
		read(FromFile, file)
	}
	if dir != "" {
		paths, err := dropIns(dir)
		if err != nil {
			errs = append(errs, err)
		}
		for _, path := range paths {
			read(FromDropIn, path)
		}
	}
	return errors.Join(errs...)
}

// mergeDefaults sets the fields that the files leave unset.
func (l *layers) mergeDefaults(set func(*KubeletConfiguration)) error {
	c, err := fromDocument(l.doc)
	if err != nil {
		return err
	}
	set(c)
	l.doc, err = toDocument(c)
	return err
}

// mergeFlags overrides fields with their flags. A map or list of a flag replaces the previous one.
func (l *layers) mergeFlags(flags *Flags) {
	for _, f := range flags.All() {
		if !f.IsSet() {
			continue
		}
		origin := Origin{Kind: FromFlag, Name: "--" + f.Name, Variable: f.variable}
		switch {
		case f.Field == "":
			l.origins["--"+f.Name] = origin
		case f.Name == "feature-gates":
			l.mergeGates(f.value.(document), origin)
		default:
			setField(l.doc, f.Field, f.value)
			l.origins.forget(f.Field)
			l.origins[f.Field] = origin
		}
	}
}

// mergeGates adds the gates that the files do not set.
func (l *layers) mergeGates(gates document, origin Origin) {
	set, ok := l.doc["featureGates"].(document)
	if !ok {
		set = document{}
		l.doc["featureGates"] = set
	}
	for name, on := range gates {
		if _, ok := set[name]; !ok {
			set[name] = on
			l.origins[fmt.Sprintf("featureGates[%s]", name)] = origin
		}
	}
}

// setFlags sets the values of flags that are not fields, and returns their errors.
func (k *Kubelet) setFlags(flags *Flags) (wrong []error) {
	k.Kubeconfig, k.BootstrapKubeconfig = flags.text("kubeconfig"), flags.text("bootstrap-kubeconfig")
	k.RootDir, k.CertDir = flags.text("root-dir"), flags.text("cert-dir")
	k.HostnameOverride = strings.ToLower(strings.TrimSpace(flags.text("hostname-override")))
	k.CloudProvider = flags.text("cloud-provider")
	k.RuntimeCgroups = flags.text("runtime-cgroups")
	k.RuntimeHandler = flags.text("runtime-handler")
	k.SELinux, _ = flags.named["selinux"].value.(bool)
	k.ImagePullProgressDeadline, _ = time.ParseDuration(flags.text("image-pull-progress-deadline")) // validated by Set
	k.KeepObjects = KeepObjects(flags.text("keep-objects"))
	k.LockFile = flags.text("lock-file")
	k.ExitOnLockContention, _ = flags.named["exit-on-lock-contention"].value.(bool)
	k.ImageCredentialProviderConfig = flags.text("image-credential-provider-config")
	k.ImageCredentialProviderBinDir = flags.text("image-credential-provider-bin-dir")
	k.MaxDeadContainersPerContainer = flags.number("maximum-dead-containers-per-container", 1)
	k.MaxDeadContainers = flags.number("maximum-dead-containers", -1)
	k.MinimumContainerTTL, _ = time.ParseDuration(flags.text("minimum-container-ttl-duration")) // validated by Set

	if labels, ok := flags.named["node-labels"].value.(document); ok {
		k.NodeLabels = map[string]string{}
		for key, value := range labels {
			k.NodeLabels[key] = value.(string)
		}
	}
	for text := range items([]string{flags.text("node-ip")}, ",") {
		ip, err := netip.ParseAddr(text)
		if err != nil {
			wrong = append(wrong, fmt.Errorf("--node-ip: %q is no IP address", text))
			continue
		}
		k.NodeIPs = append(k.NodeIPs, ip.Unmap())
	}
	return wrong
}

// number returns the value of an int32 flag that is not a field.
func (fs *Flags) number(name string, fallback int32) int32 {
	if n, ok := fs.named[name].value.(int64); ok {
		return int32(n)
	}
	return fallback
}

// flagWarnings returns warnings for flags without effect, and for flags that belong in the file.
func flagWarnings(flags *Flags) []string {
	var warnings, moved []string
	for _, f := range flags.All() {
		switch {
		case !f.IsSet():
		case f.Group == NoEffectGroup:
			warnings = append(warnings, fmt.Sprintf("--%s has no effect: %s", f.Name, f.Usage))
		case f.Group == FieldGroup:
			moved = append(moved, fmt.Sprintf("--%s (%s)", f.Name, f.Field))
		}
	}
	if len(moved) > 0 {
		warnings = append(warnings, "deprecated flags, to be set as fields of the --config file: "+strings.Join(moved, ", "))
	}
	return warnings
}

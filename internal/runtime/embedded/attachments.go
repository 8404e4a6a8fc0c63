package embedded

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"berth/internal/host/preflight"
)

// attachment is the CNI library's cached result of attaching a pod to a network.
type attachment struct {
	ContainerID string         `json:"containerId"`
	IfName      string         `json:"ifName"`
	NetNS       string         `json:"netns"`
	Config      []byte         `json:"config"`
	Result      map[string]any `json:"result"`
	Args        struct {
		PortMappings []any `json:"portMappings"`
	} `json:"capabilityArgs"`
}

// attachmentsDir is the CNI library's cache of attachments, by network, container and interface.
const attachmentsDir = "/var/lib/cni/results"

// removeAttachments runs CNI DEL for pods whose sandbox was deleted without having been stopped:
// their firewall rules would otherwise remain forever.
func removeAttachments(ctx context.Context, p paths) error {
	files, err := filepath.Glob(filepath.Join(attachmentsDir, p.network.bridge+"-*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, file := range files {
		errs = append(errs, removeAttachment(ctx, p, file))
	}
	return errors.Join(errs...)
}

// removeAttachment runs CNI DEL for a pod and removes its cached attachment. If the file is damaged
// or DEL fails, it falls back to the IDs in the file name and the persisted network configuration.
func removeAttachment(ctx context.Context, p paths, file string) error {
	id, ifName, _ := strings.Cut(strings.TrimPrefix(filepath.Base(file), p.network.bridge+"-"), "-")
	a, damaged := readAttachment(file, id, ifName)
	if errors.Is(damaged, fs.ErrNotExist) {
		return nil
	}
	err := damaged
	if err == nil {
		err = detach(ctx, p, a)
	}
	if err == nil {
		return os.RemoveAll(file)
	}
	config, failed := persistedConflist(p)
	if config != nil {
		failed = detach(ctx, p, attachment{ContainerID: id, IfName: ifName, Config: config})
	}
	if failed != nil || config == nil && damaged == nil {
		return fmt.Errorf("network of sandbox %s: %w", id, errors.Join(err, failed))
	}
	return os.RemoveAll(file)
}

func readAttachment(file, id, ifName string) (a attachment, err error) {
	if err := readJSON(file, &a); err != nil {
		return a, err
	}
	if a.ContainerID != id || a.IfName != ifName {
		return a, fmt.Errorf("%s: it is of sandbox %s and interface %s", file, a.ContainerID, a.IfName)
	}
	var list conflist
	if err := json.Unmarshal(a.Config, &list); err != nil {
		return a, fmt.Errorf("%s: network configuration: %w", file, err)
	}
	if len(list.Plugins) == 0 {
		return a, fmt.Errorf("%s: network configuration: it has no plugins", file)
	}
	return a, nil
}

// conflist is the configuration of a network (CNI specification 1.0, section 1).
type conflist struct {
	CNIVersion string           `json:"cniVersion"`
	Name       string           `json:"name"`
	Plugins    []map[string]any `json:"plugins"`
}

// detach runs DEL of each plugin in the reverse order of ADD (CNI specification 1.0, section 4).
func detach(ctx context.Context, p paths, a attachment) error {
	var list conflist
	if err := json.Unmarshal(a.Config, &list); err != nil {
		return err
	}
	for _, plugin := range slices.Backward(list.Plugins) {
		plugin["cniVersion"], plugin["name"] = list.CNIVersion, list.Name
		if a.Result != nil {
			plugin["prevResult"] = a.Result
		}
		plugin["runtimeConfig"] = map[string]any{"portMappings": a.Args.PortMappings}
		err := runPlugin(ctx, p, plugin, []string{
			"CNI_COMMAND=DEL", "CNI_CONTAINERID=" + a.ContainerID, "CNI_IFNAME=" + a.IfName,
			// Without the network namespace, which is still mounted, the reference plugin does not
			// remove its rules.
			"CNI_NETNS=" + a.NetNS,
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func runPlugin(ctx context.Context, p paths, plugin map[string]any, env []string) error {
	config, err := json.Marshal(plugin)
	if err != nil {
		return err
	}
	kind, _ := plugin["type"].(string)
	programs := filepath.Join(p.current, "cni")
	cmd := exec.CommandContext(ctx, filepath.Join(programs, filepath.Base(kind)))
	cmd.Env = append(env, "PATH="+preflight.SystemPath, "CNI_PATH="+programs)
	cmd.Stdin = bytes.NewReader(config)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("plugin %s: %w: %s", kind, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// persistedConflist returns the configuration of the bridge that pods were attached to, even if
// they use another plugin's network now; nil if there was none, or if the persisted network cannot
// be read: the next start sets that file aside.
func persistedConflist(p paths) ([]byte, error) {
	n, err := readNetwork(p.network.file)
	if err != nil || len(n.Subnets) == 0 {
		return nil, nil
	}
	n.Bridge = cmp.Or(n.Bridge, p.network.bridge)
	return generateConflist(p, n)
}

// detachLeases tears down the network of an orphan without cached attachment: its CNI ADD was
// interrupted.
func detachLeases(ctx context.Context, p paths, o orphan) error {
	config, err := persistedConflist(p)
	if err != nil {
		return err
	}
	for _, path := range o.addresses {
		id, ifName := lessee(path)
		if id != o.id {
			continue // reassigned when the network was torn down
		}
		if config != nil && ifName != "" {
			err = errors.Join(err, detach(ctx, p, attachment{ContainerID: id, IfName: ifName, Config: config}))
		}
		if id, _ := lessee(path); id == o.id {
			err = errors.Join(err, os.RemoveAll(path))
		}
	}
	return err
}

// removeNetwork runs our plugin's GC (CNI specification 1.1), which removes the network resources
// of unknown pods and its firewall table. It needs the bundle: without it there was no pod.
func removeNetwork(ctx context.Context, p paths) error {
	config, err := persistedConflist(p)
	if err != nil || config == nil {
		return err
	}
	var list conflist
	if err := json.Unmarshal(config, &list); err != nil {
		return err
	}
	plugin := list.Plugins[0]
	if _, err := os.Stat(filepath.Join(p.current, "cni", ownPlugin)); plugin["type"] != ownPlugin || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	plugin["cniVersion"], plugin["name"] = "1.1.0", list.Name
	return runPlugin(ctx, p, plugin, []string{"CNI_COMMAND=GC"})
}

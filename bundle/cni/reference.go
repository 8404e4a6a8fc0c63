package cni

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
)

// ofReference reports whether an attachment's interface was created by the reference plugins, from
// which this network was migrated. The runtime calls this plugin to delete it.
func (c *config) ofReference(a attachment) bool {
	for _, i := range c.prev.Interfaces {
		if i.Sandbox == "" && strings.HasPrefix(i.Name, vethPrefix) {
			return i.Name != a.hostName(c.Name)
		}
	}
	return false
}

// delReference runs the DEL of the reference plugins, which removes their rules for each pod. It
// skips plugins that are not installed any more.
func delReference(c *config, args *skel.CmdArgs) error {
	bridge := map[string]any{
		"type": "bridge", "bridge": c.Bridge, "isDefaultGateway": true, "hairpinMode": true,
		"ipMasq": c.Masquerade, "ipMasqBackend": "nftables",
		"ipam": map[string]any{"type": "host-local", "dataDir": c.DataDir, "ranges": c.Ranges},
	}
	portmap := map[string]any{
		"type": "portmap", "backend": "nftables",
		"runtimeConfig": map[string]any{"portMappings": c.RuntimeConfig.PortMappings},
	}
	for _, plugin := range []map[string]any{portmap, bridge} {
		kind := plugin["type"].(string)
		plugin["cniVersion"], plugin["name"] = c.CNIVersion, c.Name
		prev, err := c.prev.GetAsVersion(c.CNIVersion)
		if err != nil {
			return err
		}
		plugin["prevResult"] = prev
		conf, err := json.Marshal(plugin)
		if err != nil {
			return err
		}
		program, err := invoke.FindInPath(kind, filepath.SplitList(args.Path))
		if err != nil {
			continue
		}
		of := &invoke.Args{
			Command: "DEL", ContainerID: args.ContainerID, NetNS: args.Netns, IfName: args.IfName, PluginArgsStr: args.Args, Path: args.Path,
		}
		if err := invoke.ExecPluginWithoutResult(context.Background(), program, conf, of, nil); err != nil {
			return fmt.Errorf("what plugin %s has made: %w", kind, err)
		}
	}
	return nil
}

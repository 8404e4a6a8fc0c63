package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/containernetworking/cni/pkg/invoke"
	current "github.com/containernetworking/cni/pkg/types/100"
)

// ofReference reports whether the interface of an attachment was made by the reference plugins,
// whose network this was before: a runtime has the plugin of today take it away.
func (c *config) ofReference(a attachment) bool {
	for _, i := range c.prev.Interfaces {
		if i.Sandbox == "" && strings.HasPrefix(i.Name, vethPrefix) {
			return i.Name != a.hostName(c.Name)
		}
	}
	return false
}

// delReference has the reference plugins take away what they have made: rules for each pod. It is
// done where they are not installed any more.
func delReference(c *config) error {
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
		plugin["prevResult"] = prev.(*current.Result)
		conf, err := json.Marshal(plugin)
		if err != nil {
			return err
		}
		if _, err := invoke.FindInPath(kind, strings.Split(os.Getenv("CNI_PATH"), string(os.PathListSeparator))); err != nil {
			continue
		}
		err = invoke.DelegateDel(context.Background(), kind, conf, nil)
		if err != nil && !errors.Is(err, exec.ErrNotFound) {
			return fmt.Errorf("what plugin %s has made: %w", kind, err)
		}
	}
	return nil
}

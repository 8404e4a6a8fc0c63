package preflight

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Firewall back ends of the CNI plugins.
const (
	Nftables = "nftables"
	Iptables = "iptables"
)

// SystemPath is searched for nft, iptables and modprobe, which a login's PATH may lack.
const SystemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// DetectFirewall returns the firewall back end for the CNI plugins' NAT, or "".
//
// nft is preferred: it takes one command per pod where iptables takes several.
func DetectFirewall() string {
	for _, tool := range []struct {
		backend string
		args    []string
	}{
		{Nftables, []string{"nft", "list", "tables"}},
		{Iptables, []string{"iptables", "-w", "5", "-t", "nat", "-S"}},
	} {
		if RunTool(tool.args...) == nil {
			return tool.backend
		}
	}
	return ""
}

// RunTool runs a host program from SystemPath. The error includes its output.
func RunTool(args ...string) error {
	name, err := FindTool(args[0])
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// FindTool finds a program in SystemPath.
func FindTool(name string) (string, error) {
	for dir := range strings.SplitSeq(SystemPath, ":") {
		file := filepath.Join(dir, name)
		if fi, err := os.Stat(file); err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0 {
			return file, nil
		}
	}
	return "", fmt.Errorf("%s: %w in %s", name, exec.ErrNotFound, SystemPath)
}

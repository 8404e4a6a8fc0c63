package preflight

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Results of a fix.
const (
	// Fixed means that it was applied.
	Fixed Result = "done"
	// Planned means that it was not requested yet.
	Planned Result = "to do"
	// NotFixed means that it failed.
	NotFixed Result = "failed"
)

// Files in which a Fixer persists its changes across reboots.
const (
	modulesFile = "/etc/modules-load.d/berth.conf"
	sysctlFile  = "/etc/sysctl.d/60-berth.conf"
)

// Fixer fixes findings of Run that can be fixed without affecting other programs: it loads
// kernel modules and enables forwarding, immediately and, by its own configuration files, after a
// reboot.
type Fixer struct {
	// Root is the root of the host's file system; "" is "/".
	Root string
	// LoadModule loads a kernel module.
	LoadModule func(ctx context.Context, module string) error
	// HasFirewall reports whether firewall rules for pods can be created, or would not be possible
	// even with the kernel module.
	HasFirewall func() bool
}

// NewFixer returns a Fixer of this host.
func NewFixer() Fixer {
	return Fixer{
		LoadModule: func(_ context.Context, module string) error { return RunTool("modprobe", module) },
		HasFirewall: func() bool {
			_, err := FindTool("nft")
			return err != nil || DetectFirewall() != ""
		},
	}
}

// Fix is one fix.
type Fix struct {
	Name string // of the check that it fixes
	What string // its action, in the present tense
	do   func(context.Context) error
}

// Plan returns the necessary fixes. It makes no changes.
func (f Fixer) Plan() []Fix {
	var fixes []Fix
	module := func(check, name string) {
		fixes = append(fixes, Fix{check, "load the kernel module " + name + ", also at each boot (" + modulesFile + ")", func(ctx context.Context) error {
			if err := f.LoadModule(ctx, name); err != nil {
				return err
			}
			return f.persist(modulesFile, name)
		}})
	}
	systems := strings.Fields(f.read("/proc/filesystems"))
	if !slices.Contains(systems, "overlay") {
		module("overlayfs", "overlay")
	}
	if !f.HasFirewall() {
		module("nftables or iptables", "nf_tables")
	}
	if f.read("/proc/sys/net/netfilter/nf_conntrack_max") == "" {
		module("conntrack", "nf_conntrack")
	}
	const forwarding = "/proc/sys/net/ipv4/ip_forward"
	if strings.TrimSpace(f.read(forwarding)) == "0" {
		fixes = append(fixes, Fix{"IPv4 forwarding", "set net.ipv4.ip_forward=1, also at each boot (" + sysctlFile + ")", func(context.Context) error {
			if err := os.WriteFile(filepath.Join(f.Root, forwarding), []byte("1\n"), 0o644); err != nil {
				return err
			}
			return f.persist(sysctlFile, "net.ipv4.ip_forward = 1")
		}})
	}
	return fixes
}

// Do applies the fixes, and returns the result of each.
func (f Fixer) Do(ctx context.Context, fixes []Fix) []Check {
	var done []Check
	for _, fix := range fixes {
		c := Check{Name: fix.Name, Result: Fixed, Found: fix.What}
		if err := fix.do(ctx); err != nil {
			c.Result, c.Consequence = NotFixed, err.Error()
		}
		done = append(done, c)
	}
	return done
}

// persist adds the line to one of the Fixer's files, which the system reads at boot.
func (f Fixer) persist(file, line string) error {
	path := filepath.Join(f.Root, file)
	before, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	text := string(before)
	if slices.Contains(strings.Split(text, "\n"), line) {
		return nil
	}
	if text == "" {
		text = "# Written by \"berth check --fix\".\n"
	} else if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path, []byte(text+line+"\n"), 0o644); err != nil {
		return fmt.Errorf("it holds until the next boot: %w", err)
	}
	return nil
}

func (f Fixer) read(name string) string {
	b, err := os.ReadFile(filepath.Join(f.Root, name))
	if err != nil {
		return ""
	}
	return string(b)
}

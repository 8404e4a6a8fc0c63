package embedded

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

// How a fix came out, or would.
const (
	// Fixed means that it was done.
	Fixed Result = "done"
	// Planned means that it was not asked for yet.
	Planned Result = "to do"
	// NotFixed means that it was tried, and failed.
	NotFixed Result = "failed"
)

// The files in which a Fixer keeps what it changed for the time after a reboot.
const (
	modulesFile = "/etc/modules-load.d/berth.conf"
	sysctlFile  = "/etc/sysctl.d/60-berth.conf"
)

// Fixer mends what CheckHost finds lacking, as far as that takes nothing from anybody: it loads
// modules of the kernel and turns forwarding on, now and, by files of its own, after a reboot.
type Fixer struct {
	// Root is where the machine's files are; "" is "/".
	Root string
	// LoadModule loads a module of the kernel.
	LoadModule func(ctx context.Context, module string) error
	// HasFirewall reports whether rules for host ports and addresses of pods can be made, or could
	// not be if the kernel had the module for it.
	HasFirewall func() bool
}

// NewFixer returns the Fixer of this machine.
func NewFixer() Fixer {
	return Fixer{
		LoadModule: func(_ context.Context, module string) error { return runTool("modprobe", module) },
		HasFirewall: func() bool {
			_, err := findTool("nft")
			return err != nil || detectFirewall() != ""
		},
	}
}

// Fix is one thing to mend.
type Fix struct {
	Name string // of the check that it is for
	What string // what is done, in the present tense
	do   func(context.Context) error
}

// Plan returns what there is to mend. It changes nothing.
func (f Fixer) Plan() []Fix {
	var fixes []Fix
	module := func(check, name string) {
		fixes = append(fixes, Fix{check, "load the kernel module " + name + ", also at each boot (" + modulesFile + ")", func(ctx context.Context) error {
			if err := f.LoadModule(ctx, name); err != nil {
				return err
			}
			return f.keep(modulesFile, name)
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
			return f.keep(sysctlFile, "net.ipv4.ip_forward = 1")
		}})
	}
	return fixes
}

// Do does the fixes, and says of each how it came out.
func (f Fixer) Do(ctx context.Context, fixes []Fix) []HostCheck {
	var done []HostCheck
	for _, fix := range fixes {
		c := HostCheck{Name: fix.Name, Result: Fixed, Found: fix.What}
		if err := fix.do(ctx); err != nil {
			c.Result, c.Consequence = NotFixed, err.Error()
		}
		done = append(done, c)
	}
	return done
}

// keep has a file of the Fixer's own say the line, which those that read it at a boot do.
func (f Fixer) keep(file, line string) error {
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

// read returns the content of a small file, "" if it cannot be read.
func (f Fixer) read(name string) string {
	b, err := os.ReadFile(filepath.Join(f.Root, name))
	if err != nil {
		return ""
	}
	return string(b)
}

package cni

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Main runs the plugin with the environment and standard input.
func Main() {
	skel.PluginMainFuncs(funcs(os.Stdout), versions, "CNI plugin berth-cni")
}

// funcs returns the commands of the specification. They print to out.
func funcs(out io.Writer) skel.CNIFuncs {
	return skel.CNIFuncs{
		Add: func(args *skel.CmdArgs) error { return add(args, out) },
		Del: del, Check: check, GC: gc, Status: status,
	}
}

// versions are the supported versions of the specification.
var versions = version.VersionsStartingFrom("0.3.0")

// step is called before each changing step and at the beginning of Exec. Tests use it as crash
// points.
var step = func(string) {}

// add creates a pod's interface and prints the result. After an error, it removes what it has
// created.
func add(args *skel.CmdArgs, out io.Writer) error {
	c, err := parseConfig(args.StdinData)
	if err != nil {
		return err
	}
	if c.prev != nil {
		return fail(types.ErrInvalidNetworkConfig, "plugins: berth-cni makes the interface, and must be the first")
	}
	for _, m := range c.RuntimeConfig.PortMappings {
		if err := m.check(); err != nil {
			return err
		}
	}
	if err := c.RuntimeConfig.Bandwidth.check(); err != nil {
		return err
	}
	p, err := openPod(attachment{args.ContainerID, args.IfName}, args.Netns)
	if err != nil {
		return err
	}
	defer p.close()
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	bridge, err := ensureBridge(h, c)
	if err != nil {
		return err
	}
	step("bridge")
	addresses, err := leaseAddresses(c, p.attachment)
	if err != nil {
		return err
	}
	result, err := attach(h, bridge, c, p, addresses)
	if err != nil {
		return errors.Join(err, detach(c, p.attachment))
	}
	asked, err := result.GetAsVersion(c.CNIVersion)
	if err != nil {
		return err
	}
	return asked.PrintTo(out)
}

// leaseAddresses leases an address of each range set.
func leaseAddresses(c *config, to attachment) (addresses []address, err error) {
	l, err := openLeases(c)
	if err != nil {
		return nil, err
	}
	defer l.close()
	all, err := l.list()
	if err != nil {
		return nil, err
	}
	for a, owner := range all {
		if owner == to {
			return nil, fail(types.ErrInvalidEnvironmentVariables, "%s has the address %s already: DEL it first", to.id, a)
		}
	}
	for i, set := range c.Ranges {
		a, of, err := l.lease(set, i, to)
		if err != nil {
			for _, given := range addresses {
				err = errors.Join(err, l.release(given.Addr))
			}
			return nil, err
		}
		addresses = append(addresses, address{a, of})
		step("lease")
	}
	return addresses, nil
}

// attach creates everything but the leases.
func attach(h *netlink.Handle, bridge *netlink.Bridge, c *config, p *pod, addresses []address) (*current.Result, error) {
	host, inner, err := connect(h, bridge, c, p)
	if err != nil {
		return nil, err
	}
	step("connect")
	if err := p.configure(inner, addresses); err != nil {
		return nil, err
	}
	step("configure")
	if err := ensureForwarding(addresses); err != nil {
		return nil, err
	}
	if err := translate(c, p.attachment, addresses); err != nil {
		return nil, err
	}
	step("translate")
	limiter, err := c.RuntimeConfig.Bandwidth.limit(h, host, p.attachment.ifbName(c.Name))
	if err != nil {
		return nil, err
	}
	if host, err = awaitUp(h, host); err != nil {
		return nil, err
	}
	result := &current.Result{CNIVersion: current.ImplementedSpecVersion, Interfaces: interfaces(bridge, host, inner, p), DNS: c.DNS}
	for _, a := range addresses {
		result.IPs = append(result.IPs, &current.IPConfig{Interface: current.Int(2), Address: *a.ipNet(), Gateway: a.of.Gateway.AsSlice()})
		result.Routes = append(result.Routes, &types.Route{Dst: *a.everywhere(), GW: a.of.Gateway.AsSlice()})
	}
	if limiter != nil {
		result.Interfaces = append(result.Interfaces, limiter)
	}
	return result, nil
}

// translate sets up address translation for the pod: masquerading and its host ports.
func translate(c *config, a attachment, addresses []address) error {
	ports := c.RuntimeConfig.PortMappings
	if !c.Masquerade && len(ports) == 0 {
		return nil
	}
	r, err := openRuleset(c)
	if err != nil {
		return err
	}
	defer r.close()
	// Two concurrent calls could both find a port free, or a table missing.
	l, err := openLeases(c)
	if err != nil {
		return err
	}
	defer l.close()
	if err := r.ensure(c, l); err != nil {
		return err
	}
	if len(ports) == 0 {
		return nil
	}
	if err := r.open(r.mappings(ports, addrs(addresses), a), l); err != nil {
		return err
	}
	step("ports")
	forgetConnections(ports)
	if slices.ContainsFunc(addresses, func(a address) bool { return a.Is4() }) {
		return routeLocalnet(c.Bridge)
	}
	return nil
}

func addrs(addresses []address) []netip.Addr {
	var out []netip.Addr
	for _, a := range addresses {
		out = append(out, a.Addr)
	}
	return out
}

// del removes a pod's interface and all that belongs to it.
func del(args *skel.CmdArgs) error {
	c, err := parseConfig(args.StdinData)
	if err != nil {
		return err
	}
	a := attachment{args.ContainerID, args.IfName}
	if c.prev != nil && c.ofReference(a) {
		if err := delReference(c, args); err != nil {
			return err
		}
	}
	return detach(c, a)
}

// detach removes all that is left of an attachment. The lease is removed last: it marks that there
// may be more.
func detach(c *config, a attachment) error {
	l, err := openLeases(c)
	if err != nil {
		return err
	}
	defer l.close()
	closed, err := closePortsOf(c, func(comment string) bool { return comment == a.comment() })
	if err != nil {
		return err
	}
	if len(closed) > 0 {
		step("close")
		forgetConnections(closed)
	}
	// The kernel needs some time for the interface: release the lock first.
	l.close()
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	if err := a.disconnect(h, c.Name); err != nil {
		return err
	}
	if l, err = openLeases(c); err != nil {
		return err
	}
	defer l.close()
	all, err := l.list()
	if err != nil {
		return err
	}
	var errs []error
	for _, address := range a.of(all) {
		errs = append(errs, l.release(address))
		step("release")
	}
	return errors.Join(errs...)
}

// closePortsOf closes host ports in the network's table, if it exists.
func closePortsOf(c *config, matches func(comment string) bool) ([]portMapping, error) {
	r, err := openRuleset(c)
	if isMissing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer r.close()
	return r.closePorts(matches)
}

// gc removes what belongs to none of the runtime's attachments, and the network's table if there
// are none.
func gc(args *skel.CmdArgs) error {
	c, err := parseConfig(args.StdinData)
	if err != nil {
		return err
	}
	valid, comments := map[attachment]bool{}, map[string]bool{}
	for _, a := range c.ValidAttachments {
		of := attachment{a.ContainerID, a.IfName}
		valid[of], valid[attachment{id: a.ContainerID}], comments[of.comment()] = true, true, true
	}
	l, err := openLeases(c)
	if err != nil {
		return err
	}
	all, err := l.list()
	l.close()
	if err != nil {
		return err
	}
	var errs []error
	for _, owner := range all {
		if !valid[owner] {
			errs = append(errs, detach(c, owner))
		}
	}
	closed, err := closePortsOf(c, func(comment string) bool { return !comments[comment] })
	forgetConnections(closed)
	errs = append(errs, err)
	if len(valid) == 0 {
		errs = append(errs, removeTable(c))
	}
	return errors.Join(errs...)
}

func removeTable(c *config) error {
	r, err := openRuleset(c)
	if isMissing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer r.close()
	return r.remove()
}

// errNotAvailable is the code of a plugin that cannot serve an ADD (CNI specification 1.1, STATUS).
const errNotAvailable = 50

// status returns why pods could not get an interface.
func status(args *skel.CmdArgs) error {
	c, err := parseConfig(args.StdinData)
	if err != nil {
		return err
	}
	if c.Masquerade {
		r, err := openRuleset(c)
		if err == nil {
			_, err = r.conn.ListTables()
			r.close()
		}
		if err != nil {
			return fail(errNotAvailable, "ipMasq: the kernel has no nftables: load the module nf_tables: %v", err)
		}
	}
	if _, err := os.Stat(c.DataDir + "/" + c.Name); errors.Is(err, os.ErrNotExist) {
		return nil // no pod yet
	}
	l, err := openLeases(c)
	if err != nil {
		return err
	}
	defer l.close()
	all, err := l.list()
	if err != nil {
		return err
	}
	for _, set := range c.Ranges {
		if !set.free(all) {
			return fail(errNotAvailable, "no address of %s is free: end pods, or give the node a larger range", set)
		}
	}
	return nil
}

// check reports what differs from the result of a pod's ADD.
func check(args *skel.CmdArgs) error {
	c, err := parseConfig(args.StdinData)
	if err != nil {
		return err
	}
	if c.prev == nil {
		return fail(types.ErrInvalidNetworkConfig, "prevResult: a CHECK needs that of the ADD")
	}
	p, err := openPod(attachment{args.ContainerID, args.IfName}, args.Netns)
	if err != nil {
		return err
	}
	defer p.close()
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	return firstError(
		func() error { return c.checkLinks(h, p) },
		func() error { return c.checkAddresses(p) },
		func() error { return c.checkTranslation(p) },
		func() error { return c.checkLimits(h, p) },
	)
}

func firstError(all ...func() error) error {
	for _, do := range all {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

// errBroken is the code of a CHECK that found a difference from the result of the ADD.
const errBroken = 100

func broken(format string, args ...any) error {
	return types.NewError(errBroken, fmt.Sprintf(format, args...), "")
}

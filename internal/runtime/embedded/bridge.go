package embedded

import (
	"encoding/binary"
	"net"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// deleteBridge calls the ioctl SIOCBRDELBR, whose argument is the bare name of the bridge
// (netdevice(7) documents only the ioctls for flags).
func deleteBridge(socket int, name string) error {
	arg, err := unix.BytePtrFromString(name)
	if err != nil {
		return err
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), unix.SIOCBRDELBR, uintptr(unsafe.Pointer(arg))); errno != 0 {
		return errno
	}
	return nil
}

// isUp reports whether an interface exists. It asks the kernel instead of /sys, which shows the
// network namespace in which it was mounted.
func isUp(name string) bool {
	_, err := net.InterfaceByName(name)
	return err == nil
}

// bridgePorts counts the pod interfaces of a bridge; a missing bridge has none. If they cannot be
// listed, it returns one.
func bridgePorts(name string) int {
	bridge, err := net.InterfaceByName(name)
	if err != nil {
		return 0
	}
	const unknown = 1
	table, err := syscall.NetlinkRIB(unix.RTM_GETLINK, unix.AF_UNSPEC)
	if err != nil {
		return unknown
	}
	links, err := syscall.ParseNetlinkMessage(table)
	if err != nil {
		return unknown
	}
	ports := 0
	for _, link := range links {
		if link.Header.Type != unix.RTM_NEWLINK {
			continue
		}
		attributes, err := syscall.ParseNetlinkRouteAttr(&link)
		if err != nil {
			return unknown
		}
		for _, a := range attributes {
			if a.Attr.Type == unix.IFLA_MASTER && len(a.Value) == 4 && int(binary.NativeEndian.Uint32(a.Value)) == bridge.Index {
				ports++
			}
		}
	}
	return ports
}

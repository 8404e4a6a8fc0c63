package embedded

import (
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// deleteBridge is the ioctl SIOCBRDELBR, whose argument is the bare name of the bridge
// (netdevice(7) has the flags, not this).
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

// bridgePorts counts the interfaces of pods in the bridge; a missing bridge has none.
func bridgePorts(name string) int {
	ports, err := os.ReadDir(filepath.Join("/sys/class/net", name, "brif"))
	if err != nil {
		return 0
	}
	return len(ports)
}

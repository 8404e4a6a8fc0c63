package mounts

import (
	"fmt"
	"io/fs"
	"regexp"
)

// helperPackages are the packages of the helpers of mount(8) by filesystem.
var helperPackages = map[string]string{
	"nfs":  "nfs-common on Debian and Ubuntu, nfs-utils elsewhere",
	"nfs4": "nfs-common on Debian and Ubuntu, nfs-utils elsewhere",
	"cifs": "cifs-utils",
	"ceph": "ceph-common",
}

// unknownToKernel matches the output of mount(8) and its helpers if the kernel does not support a
// filesystem.
var unknownToKernel = regexp.MustCompile(`unknown filesystem type|No such device|Protocol not supported`)

// advise returns what this machine lacks for the filesystem, given the output of mount(8), with a
// trailing colon; "" if nothing is known. root is the machine's filesystem.
func advise(root fs.FS, fsType, printed string) string {
	if install, ok := helperPackages[fsType]; ok {
		helper, found := "mount."+fsType, false
		for _, dir := range []string{"sbin/", "usr/sbin/"} {
			if _, err := fs.Stat(root, dir+helper); err == nil {
				found = true
			}
		}
		if !found {
			return fmt.Sprintf("this machine lacks the program %s: install it (%s): ", helper, install)
		}
	}
	if unknownToKernel.MatchString(printed) {
		return fmt.Sprintf("the kernel of this machine does not know the filesystem %s: load its module (modprobe %s): ", fsType, fsType)
	}
	return ""
}

package mounts

import (
	"testing"
	"testing/fstest"
)

func TestAdvise(t *testing.T) {
	with := fstest.MapFS{"sbin/mount.nfs": {}, "usr/sbin/mount.cifs": {}}
	for _, tc := range []struct {
		name, fsType, printed string
		root                  fstest.MapFS
		want                  string
	}{
		{
			"no program", "nfs", "mount: /x: unknown filesystem type 'nfs'.", fstest.MapFS{},
			"this machine lacks the program mount.nfs: install it (nfs-common on Debian and Ubuntu, nfs-utils elsewhere): ",
		},
		{
			"no program, and mount guesses so", "cifs", "mount: /x: bad option; for several filesystems (e.g. nfs, cifs) you might need a /sbin/mount.<type> helper program.",
			fstest.MapFS{}, "this machine lacks the program mount.cifs: install it (cifs-utils): ",
		},
		{
			"no module", "nfs", "mount.nfs: No such device", with,
			"the kernel of this machine does not know the filesystem nfs: load its module (modprobe nfs): ",
		},
		{
			"no module of a filesystem without a program", "xfs", "mount: /x: unknown filesystem type 'xfs'.", with,
			"the kernel of this machine does not know the filesystem xfs: load its module (modprobe xfs): ",
		},
		{"the program in the other folder", "cifs", "mount error(13): Permission denied", with, ""},
		{"a server that refuses", "nfs", "mount.nfs: access denied by server while mounting 10.0.0.1:/x", with, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := advise(tc.root, tc.fsType, tc.printed); got != tc.want {
				t.Errorf("got  %q\nwant %q", got, tc.want)
			}
		})
	}
}

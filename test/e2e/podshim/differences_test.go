//go:build e2e && podshim

package podshim

// differences are those that stay between what is seen with pod shims and with stock shims.
var differences = []difference{
	{
		what: `mount /(proc/.*|plain|etc/passwd)`, stock: `/null of tmpfs of tmpfs, rw,nosuid, .*`, podshim: `/null of \S+ of .*, ro,.*`,
		why: "a hidden file has the host's null device on it, read-only, and not the container's, which an image or a volume can make something else",
	},
	{
		what: `mount /([^v].*)?`, stock: `.*, "(shared|master)"`, podshim: `.*, ""`,
		why: "with a volume that goes to the host or comes from it, so do all mounts of a container, or hear of the host's; with a pod shim, those on the volume alone",
	},
	{
		what: `mount /sys/fs/cgroup`, stock: `/ of tmpfs of tmpfs, rw,.*`, podshim: `/ of tmpfs of tmpfs, ro,.*`,
		why: "the folder of the hierarchies is as read-only as they are", v1: true,
	},
	{
		what: `mount /sys`, stock: `.*, rw, ""`, podshim: `.*, ro, ""`,
		why: "the pause container of a privileged pod mounts it first, and may write to it; this mount is read-only in both",
	},
	{
		what: `fd 0`, stock: `N, mode 10000, flags 0`, podshim: `DIR/state/.*-stdin, mode 10000, flags 100000`,
		why: "the input is containerd's FIFO, without a copy in between; its path leads nowhere in the container",
	},
	{
		what: `fd [12]`, stock: `N, mode 10000, flags 1`, podshim: `DIR/state/.*-std(out|err), mode 10000, flags 100001`,
		why: "an exec writes to containerd's FIFO itself; its path leads nowhere in the container",
	},
	{
		what: `fd 0`, stock: `/dev/null, mode 20000, flags 100000`, podshim: `/dev/null, mode 20000, flags 100002`,
		why: "an exec without input could write to its null device, as a container without input can",
	},
	{
		what: `fd 0`, stock: `/dev/null, mode 20000, flags 100000`, podshim: `N, mode 10000, flags 0`,
		why: "with a volume at /dev that has no null device, runc gives the host's, and a pod shim a pipe that has ended",
	},
	{
		what: `mount /sys/fs/cgroup/systemd`, stock: `/ of systemd of cgroup, .*`, podshim: `/ of cgroup of cgroup, .*`,
		why: "in a cgroup namespace, runc mounts the hierarchies anew, and names this one", v1: true,
	},
	{
		what: `session keyring`, stock: `keyring;0;0;3f1b0000;_ses.ID`, podshim: `keyring;0;0;[0-9a-f]*;_ses`,
		why: "one without a name is found by no other container",
	},
	{
		what: `device /dev/(full|null|random|tty|urandom|zero)`, stock: `mode 20666, .*, owner 65534:65534, `, podshim: `mode 20666, .*, owner 0:0, `,
		why: "in a user namespace, runc has mounts of the host's devices, and a pod shim makes nodes, which belong to root",
	},
	{
		what: `mount /dev/(full|null|random|tty|urandom|zero)`, stock: `/\w+ of \S+ of devtmpfs.*`, podshim: `\(absent\)`,
		why: "as before: nodes need no mounts",
	},
	{
		what: `device /dev/mqueue`, stock: `mode 41777, 0:0, owner 0:65534, `, podshim: `mode 41777, 0:0, owner 0:0, `,
		why: "in a user namespace, who mounts it has a group there",
	},
	{
		what: `device /dev/pts`, stock: `mode 40755, 0:0, owner 0:0, `, podshim: `mode 40755, 0:0, owner 65534:65534, `,
		why: "in a user namespace, it is made outside",
	},
	{
		what: `mount /proc/(kcore|keys|timer_list)`, stock: `/null of \S+ of .*, rw,.*`, podshim: `/null of \S+ of .*, ro,.*`,
		why: "in a user namespace, both have the host's null device on a hidden file, and the podshim's is read-only",
	},
	{
		what: `session keyring`, stock: `keyring;0;0;3f130008;_ses.ID|keyring;0;0;3f130000;_ses.ID`, podshim: `keyring;65534;65534;[0-9a-f]*;_ses`,
		why: "in a user namespace, it is made outside, and found by no other container",
	},
}

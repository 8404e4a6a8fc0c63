#!/usr/bin/env bash
# image.sh DIR: makes DIR, with the disk of the virtual machine (disk.ext4), its kernel and its initial RAM disk, unless it is there.
#
# Debian with systemd and a kernel for virtual machines. Nothing is mounted on the host that is seen outside of this script. At boot the
# machine unpacks the disk with the serial number "in" and runs the program "guest" in it.
set -Eeuo pipefail

image=$1
suite=trixie
mirror=http://deb.debian.org/debian
packages=e2fsprogs,systemd-sysv,systemd-resolved,dbus,udev,kmod,libpam-systemd,apparmor,nftables,iptables,conntrack,iproute2,procps,linux-image-cloud-amd64,initramfs-tools
packages+=,nfs-kernel-server,nfs-common,selinux-policy-default,selinux-utils,policycoreutils

[ ! -f "$image/disk.ext4" ] || exit 0
mkdir -p "$(dirname "$image")"
exec 9>"$image.lock"
flock 9
[ ! -f "$image/disk.ext4" ] || exit 0

work=$(mktemp -d "$image.XXXXXX")
trap 'rm -rf --one-file-system "$work" "$image.lock"' EXIT
trap 'code=$?; echo "vm: no image: line $LINENO of $0 ended with code $code: $BASH_COMMAND" >&2; tail -20 "$work/log" >&2 || true; exit "$code"' ERR
for signal in HUP INT TERM; do
	# shellcheck disable=SC2064 # the name is that of now
	trap "echo 'vm: no image: SIG$signal' >&2; exit 130" "$signal"
done
root=$work/root
echo "vm: Debian $suite and its kernel (the first time takes about a minute and a half; kept in $image)"
# In a mount namespace of its own: whatever the installation mounts goes with it.
unshare --mount --propagation private debootstrap --variant=minbase --include="$packages" "$suite" "$root" "$mirror" >"$work/log" 2>&1

echo berth-vm >"$root/etc/hostname"
printf '127.0.0.1 localhost berth-vm\n::1 localhost\n' >"$root/etc/hosts"
echo '/dev/vda / ext4 defaults 0 0' >"$root/etc/fstab"
: >"$root/etc/machine-id"
printf '[Match]\nName=en* eth*\n[Network]\nDHCP=ipv4\n' >"$root/etc/systemd/network/10-wire.network"
mkdir -p "$root/etc/systemd/journald.conf.d" "$root/opt/guest"
printf '[Journal]\nStorage=persistent\nRateLimitBurst=0\n' >"$root/etc/systemd/journald.conf.d/all.conf"
cat >"$root/etc/systemd/system/guest.service" <<'UNIT'
[Unit]
Description=The tests that the machine was started for
Wants=network-online.target
After=network-online.target apparmor.service

[Service]
Type=oneshot
ExecStartPre=/bin/sh -c 'tar -xf /dev/disk/by-id/virtio-in -C /opt/guest'
ExecStart=/opt/guest/guest
Delegate=yes
KillMode=process
TasksMax=infinity
TimeoutStartSec=infinity
OOMScoreAdjust=-900

[Install]
WantedBy=multi-user.target
UNIT
units() { unshare --mount --propagation private sh -c 'mount -t proc proc "$0/proc" && exec chroot "$0" systemctl -q "$@"' "$root" "$@"; }
units enable guest.service systemd-networkd.service
# The tests that want a server of NFS start it.
units disable nfs-server.service nfs-client.target rpcbind.service rpcbind.socket
# The console is for the kernel's last words; timers would run while tests do.
# /tmp stays on the disk, where tests have their nodes: what they write is not to be taken from memory.
units mask tmp.mount serial-getty@ttyS0.service getty@tty1.service systemd-timesyncd.service \
	apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer systemd-tmpfiles-clean.timer
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,man,locale}

cp "$root"/boot/vmlinuz-* "$work/kernel"
cp "$root"/boot/initrd.img-* "$work/initrd"
# The configuration of the kernel stays, which kubeadm reads.
find "$root/boot" -mindepth 1 ! -name 'config-*' -delete
# The policy's labels, for a machine that is started with SELinux. Without it they mean nothing.
chroot "$root" setfiles -F /etc/selinux/default/contexts/files/file_contexts / >>"$work/log" 2>&1
mke2fs -q -t ext4 -E lazy_itable_init=1,lazy_journal_init=1 -d "$root" "$work/disk.ext4" 10G >>"$work/log" 2>&1
rm -rf --one-file-system "$root" "$work/log"
chmod 755 "$work"
rm -rf "$image"
mv -T "$work" "$image"

#!/bin/bash
# What the machine runs when it is up: the tests, once, and those again that ask for a reboot. A test asks for one by writing a pattern
# that names it into the file BERTH_REBOOT; when it runs again, that file has the suffix .done.
set -u
cd /opt/guest
exec >/dev/virtio-ports/tests 2>&1

. ./environment
export HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export BERTH=/opt/guest/berth BERTH_SLOWER=${BERTH_SLOWER:-10}
export BERTH_VM=/var/lib/guest BERTH_REBOOT=/var/lib/guest/reboot
[ ! -e podshim.tar ] || { mkdir -p podshim && tar -xf podshim.tar -C podshim && export PODSHIM=/opt/guest/podshim; }
[ ! -e packages ] || export BERTH_PACKAGES=/opt/guest/packages
[ ! -e controlplane ] || export CONTROLPLANE=/opt/guest/controlplane
mkdir -p "$BERTH_VM"

swap=/dev/disk/by-id/virtio-swap
blkid -t TYPE=swap "$swap" >/dev/null || mkswap -q "$swap"
swapon "$swap"

pattern=$(cat pattern) seconds=$(cat seconds)
if [ -e "$BERTH_REBOOT" ]; then
	pattern=$(cat "$BERTH_REBOOT")
	mv "$BERTH_REBOOT" "$BERTH_REBOOT.done"
	echo '== the machine was rebooted'
else
	echo "== $(uname -r), systemd $(systemctl --version | awk 'NR == 1 { print $2 }'), up after $(cut -d' ' -f1 /proc/uptime) s"
fi
# Debian's policy lets an administrator's programs start containers, and not what systemd starts.
as=()
if [ -e /sys/fs/selinux/enforce ]; then
	for program in berth tests controlplane; do
		[ ! -e "$program" ] || chcon -t bin_t "$program"
	done
	as=(runcon unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023)
fi
cd checkout/test/e2e
"${as[@]}" /opt/guest/tests -test.v -test.count=1 -test.parallel=1 -test.timeout="${seconds}s" -test.run "$pattern"
code=$?

result=$BERTH_VM/result
mkdir -p "$result"
[ "$code" -eq 0 ] && [ -e "$result/exit-code" ] || echo "$code" >"$result/exit-code"
if [ -e "$BERTH_REBOOT" ] && ! [ -e "$BERTH_REBOOT.done" ]; then
	tar -C "$BERTH_VM" -cf /dev/disk/by-id/virtio-out reboot
	systemctl --no-block reboot
	exit
fi
journalctl --no-pager -o short-monotonic | tail -c 40M >"$result/journal.log"
tar -C "$result" -cf /dev/disk/by-id/virtio-out .
sync
systemctl --no-block poweroff

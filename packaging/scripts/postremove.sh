#!/bin/sh
# After the files are gone. "purge", which dpkg alone has, takes away what the agent kept.
set -e

if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
[ "$1" = purge ] || exit 0

if grep -qs ' /var/lib/berth/' /proc/self/mounts; then
	echo 'berth: something is mounted below /var/lib/berth, which stays for that reason; see: findmnt' >&2
	exit 0
fi
if mountpoint -q /var/lib/berth; then
	find /var/lib/berth -mindepth 1 -xdev -delete # a disk of its own
else
	rm -rf --one-file-system /var/lib/berth
fi
rm -rf --one-file-system /run/berth

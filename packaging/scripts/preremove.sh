#!/bin/sh
# Before the files go. An upgrade ends nothing. A removal ends the agent, and its pods and the runtime inside: nothing would be left that
# could end them later. Their data stay.
#
# $1 is "remove" with dpkg, where an upgrade has other words; with RPM, it is the number of versions that stay.
set -e

case "$1" in
remove | 0) ;;
*) exit 0 ;;
esac

if [ -d /run/systemd/system ]; then
	systemctl stop berth.service
fi
# The runtime inside is there. Pods of another runtime of this machine are not the package's: the next kubelet takes them over.
if [ -S /run/berth/containerd.sock ]; then
	echo 'berth: ending the pods'
	/usr/bin/berth stop --all || {
		echo 'berth: not all pods have ended, and the package stays; remove it again when what is named above has ended' >&2
		exit 1
	}
fi
if [ -d /run/systemd/system ]; then
	systemctl --no-reload disable berth.service
fi

#!/bin/sh
# Before the files go. A removal ends the agent and leaves its pods running, as that of a kubelet does: another kubelet takes them over.
# When it is the package kubelet that comes instead ("in-favour"), the service stays enabled.
set -e

case "$1" in
remove | 0) ;;
*) exit 0 ;;
esac

if [ -d /run/systemd/system ]; then
	systemctl stop kubelet.service
	[ "${2:-}" = in-favour ] || systemctl --no-reload disable kubelet.service
fi

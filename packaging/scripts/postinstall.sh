#!/bin/sh
# After the files are there. An agent that runs is started again with the new program, which its pods do not notice; one that does not run
# stays as it is. Nothing is enabled: see docs/install.md.
#
# $1 and $2 are "configure" and the version before with dpkg; with RPM, $1 is the number of versions that are there now.
set -e

first=
case "$1" in
configure) [ -n "${2:-}" ] || first=yes ;;
1) first=yes ;;
esac

if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	systemctl try-restart berth.service ||
		echo 'berth: the agent did not start with the new version; its pods go on. See: journalctl -u berth' >&2
fi
if [ -n "$first" ]; then
	echo 'berth: to run the pods in /etc/berth/manifests from now on: systemctl enable --now berth'
fi

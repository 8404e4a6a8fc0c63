#!/bin/sh
# After the files are there: as postinstall.sh of berth.
set -e

if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	systemctl try-restart kubelet.service ||
		echo 'berth-kubelet: the agent did not start with the new version; its pods go on. See: journalctl -u kubelet' >&2
fi

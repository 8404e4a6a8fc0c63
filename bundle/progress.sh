#!/bin/sh
# Runs a command, and says every 15 seconds for how long it has been at work: progress.sh WHAT COMMAND...
what=$1
shift
began=$(date +%s)
(
	trap 'kill "$pause" 2>/dev/null; exit 0' TERM
	while :; do
		sleep 15 >/dev/null 2>&1 &
		pause=$!
		wait "$pause"
		echo "$what: $(($(date +%s) - began)) s so far"
	done
) &
beat=$!
trap 'kill "$beat" 2>/dev/null; exit 130' INT TERM
"$@"
code=$?
kill "$beat" 2>/dev/null
exit "$code"

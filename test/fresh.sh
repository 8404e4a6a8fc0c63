#!/usr/bin/env bash
# Runs the commands that README marks for it, as a newcomer would: in a Debian that has Go, gcc and make, and nothing else. `make fresh` calls
# it, as root. Everything is built from nothing, which takes a while; with CACHES=yes from copies of this machine's caches, for whoever
# works on this script.
#
# It has processes and mounts of its own, which end with it whatever happens, but the machine's network, and of its cgroups kubepods: no
# agent with the default folders may run besides.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "fresh: $*" >&2; exit 1; }

# mirror prints the address from which this machine has the packages of its suite.
mirror() {
	awk -v suite="$1" '
		$1 == "URIs:" { uri = $2 }
		$1 == "Suites:" { for (i = 2; i <= NF; i++) if ($i == suite) { print uri; exit } }
		$1 == "deb" { for (i = 2; i < NF; i++) if ($(i + 1) == suite) { print $i; exit } }' \
		$(ls /etc/apt/sources.list /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list 2>/dev/null)
}

# typed prints the commands of README that are for `make fresh`.
typed() {
	awk '/^<!-- run by: make fresh -->$/ { mine = 1; next } mine && /^```sh$/ { inside = 1; next } /^```$/ { mine = inside = 0 } inside' README.md
}

outside() {
	[ "$(id -u)" = 0 ] || fail 'it makes containers and mounts: run it as root'
	command -v debootstrap >/dev/null || fail 'debootstrap is missing: apt-get install debootstrap'
	[ -n "$(typed)" ] || fail 'README.md has no commands for make fresh'
	suite=$(. /etc/os-release; echo "$VERSION_CODENAME")
	mirror=$(mirror "$suite")
	[ -n "$mirror" ] || fail "no mirror of $suite in /etc/apt/sources.list and /etc/apt/sources.list.d"
	export FRESH_ROOT; FRESH_ROOT=$(mktemp -d /tmp/fresh.XXXXXX)
	chmod 755 "$FRESH_ROOT" # apt is also another user
	had=$(kubepods)
	trap 'clean' EXIT
	trap 'exit 130' INT TERM
	echo "fresh: Debian $suite from $mirror"
	debootstrap --variant=minbase --include=ca-certificates,gcc,libc6-dev,make "$suite" "$FRESH_ROOT" "$mirror" >"$FRESH_ROOT.log" 2>&1 ||
		{ tail -n 20 "$FRESH_ROOT.log" >&2; fail 'debootstrap'; }
	unshare --mount --pid --fork --kill-child --propagation private "$0" inside
}

# inside has mounts and processes of its own.
inside() {
	root=$FRESH_ROOT
	mount --bind "$root" "$root" # a file system of its own, as that of a machine
	mkdir -p "$root/usr/local/go" "$root/src" "$root/new"
	mount --bind "$(go env GOROOT)" "$root/usr/local/go"
	mount -o remount,bind,ro "$root/usr/local/go"
	mount -t proc proc "$root/proc"
	mount --rbind /sys "$root/sys"
	mount --rbind /dev "$root/dev"
	mount -t tmpfs tmpfs "$root/run"
	cp /etc/resolv.conf "$root/etc/resolv.conf"
	# Whom this machine trusts: the way to the proxy of modules may be its owner's.
	cp -L "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" "$root/etc/ssl/certs/ca-certificates.crt"
	echo '127.0.0.1 localhost' >"$root/etc/hosts" # which the installer writes
	git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$root/src"
	local env=(HOME=/new PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
		GOPROXY="$(go env GOPROXY)" GOSUMDB="$(go env GOSUMDB)" GOTOOLCHAIN=local ONCE=1)
	if [ "${CACHES:-}" = yes ]; then
		borrow "$(go env GOMODCACHE)" /new/go/pkg/mod
		borrow "$(go env GOCACHE)" /new/.cache/go-build
		borrow "${BERTH_CACHE:-$HOME/.cache/berth}" /new/.cache/berth
	fi
	echo "fresh: the commands of README:"
	typed | sed 's/^/  /'
	local code=0
	env -i "${env[@]}" chroot "$root" bash -exc "cd /src; $(typed)" </dev/null || code=$?
	# Had a command failed, there would be pods, their network and a runtime.
	[ "$code" = 0 ] || chroot "$root" /src/bin/berth stop --all || true
	return "$code"
}

# borrow shows a folder of the machine in the new one; what is written there goes with it.
borrow() {
	local layers=$FRESH_ROOT.caches$2
	mkdir -p "$layers/upper" "$layers/work" "$FRESH_ROOT$2"
	mount -t overlay overlay -o "lowerdir=$1,upperdir=$layers/upper,workdir=$layers/work" "$FRESH_ROOT$2"
}

# kubepods prints the cgroups of pods, the innermost first.
kubepods() { find /sys/fs/cgroup -maxdepth 4 -depth -type d \( -path '*/kubepods' -o -path '*/kubepods/burstable' -o -path '*/kubepods/besteffort' \) 2>/dev/null || true; }

clean() {
	status=$?
	trap - EXIT INT TERM
	# Processes and mounts have ended with the namespaces. What outlives them is of the machine.
	local left
	for left in $(comm -13 <(sort <<<"$had") <(kubepods | sort) | sort -r); do
		rmdir "$left" || status=1
	done
	rm -rf --one-file-system "$FRESH_ROOT" "$FRESH_ROOT.log" "$FRESH_ROOT.caches" || status=1
	[ "$status" = 0 ] && echo 'fresh: README is right' || echo "fresh: failed ($status)" >&2
	exit "$status"
}

case ${1:-outside} in
outside | inside) "${1:-outside}" ;;
*) fail "unknown argument $1" ;;
esac

#!/usr/bin/env bash
# prove.sh DIST ARCHS: proves of the packages in DIST what needs no systemd: that the commit makes the same bytes in another folder and
# without what was built before; that dpkg and rpm install, upgrade and remove them where no systemd runs, and that they leave nothing; that
# programs of another architecture run. What needs systemd is in test/e2e/vm_package_test.go.
set -Eeuo pipefail
trap 'echo "prove: line $LINENO: failed: $BASH_COMMAND" >&2' ERR

dist=$(realpath "$1") archs=$2
host=$(dpkg --print-architecture)
work=$(mktemp -d /tmp/berth-prove.XXXXXX)
trap 'chmod -R u+w "$work" && rm -rf --one-file-system "$work"' EXIT

fail() {
	echo "prove: $*" >&2
	exit 1
}
[ -z "$(git status --porcelain)" ] || fail 'commit first: packages are made again from the commit'
for tool in debootstrap rpm qemu-aarch64-static zstd; do
	PATH=$PATH:/usr/sbin command -v "$tool" >/dev/null || fail "install debootstrap, rpm, qemu-user-static and zstd: there is no $tool"
done

echo '== the same bytes'
git clone -q . "$work/again"
make -C "$work/again" --no-print-directory packages DIST=dist ARCH="$archs" BERTH_CACHE="$work/cache" >"$work/log" 2>&1 || { tail -20 "$work/log"; fail 'the packages could not be made again'; }
diff "$dist/SHA256SUMS" "$work/again/dist/SHA256SUMS" || fail 'made again from nothing, packages have other bytes'

echo '== another architecture'
for arch in $archs; do
	[ "$arch" != "$host" ] || continue
	[ "$arch" = arm64 ] || fail "nothing here runs programs for $arch"
	dpkg-deb -x "$dist"/berth_*_"$arch".deb "$work/$arch"
	qemu-aarch64-static "$work/$arch/usr/bin/berth" version | grep "linux/$arch" || fail "berth is not for $arch"
	qemu-aarch64-static "$work/$arch/usr/bin/berth" check >"$work/check" || fail 'berth check fails'
	grep 'inside this program' "$work/check"
	for archive in bundle/runc api/registry; do
		for file in "$work"/cache/${archive%/*}/*/${archive%/*}.tar.zst; do
			if zstd -qdc "$file" | tar -xO "bin/${archive#*/}" | file - | grep -q aarch64; then zstd -qdc "$file" | tar -xC "$work/$arch"; fi
		done
	done
	qemu-aarch64-static "$work/$arch/bin/apiserver" kubectl version --client
	qemu-aarch64-static "$work/$arch/bin/runc" --version
	qemu-aarch64-static "$work/$arch/bin/containerd" --version
	{ qemu-aarch64-static "$work/$arch/cni/bridge" 2>&1 </dev/null || true; } | grep 'CNI bridge plugin'
done

echo '== a root without systemd'
root=$work/root
unshare --mount --propagation private debootstrap --variant=minbase --include=nftables bookworm "$root" http://deb.debian.org/debian >"$work/log" 2>&1 || { tail -20 "$work/log"; fail 'no root'; }
inside() { unshare --mount --pid --fork --propagation private chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 "$@"; }
# What is in the root, but for what package managers write of their own.
content() { (cd "$root" && find . -path ./var/lib/dpkg -prune -o -path ./var/log -prune -o -path ./var/lib/rpm -prune -o -path ./srv/packages -prune -o -print | sort); }
mkdir "$root/srv/packages"
cp "$dist"/*_"$host".deb "$root/srv/packages/"
content >"$work/before"

# next DEB: the same with a version that follows.
next() {
	dpkg-deb -R "$1" "$work/next"
	sed -i 's/^Version: .*/&.1/; s/^Depends: berth (= .*)/Depends: berth/' "$work/next/DEBIAN/control"
	dpkg-deb -Znone -b "$work/next" "${1%.deb}_next.deb" >/dev/null
	rm -rf "$work/next"
}

echo '== dpkg: install, upgrade, remove, purge'
inside sh -c 'dpkg -i /srv/packages/*.deb'
inside berth version
inside kubelet --version
[ -z "$(inside dpkg -V berth berth-kubelet)" ] || fail 'files of the packages are not as they have them'
echo 'BERTH_EXTRA_ARGS="--max-pods 7"' >"$root/etc/default/berth"
for deb in "$root"/srv/packages/*.deb; do next "$deb"; done
inside sh -c 'dpkg -i /srv/packages/*_next.deb'
grep -q 'max-pods 7' "$root/etc/default/berth" || fail 'the upgrade has overwritten the configuration'
inside dpkg --remove berth-kubelet berth
[ -f "$root/etc/default/berth" ] || fail 'the removal has removed the configuration'
inside mkdir -p /var/lib/berth/images
inside dpkg --purge berth-kubelet berth
diff "$work/before" <(content) || fail 'the purge leaves something'

echo '== rpm: install, upgrade, remove'
case $host in amd64) machine=x86_64 ;; *) machine=aarch64 ;; esac
# Of the distribution's own package of folders.
mkdir -p "$root"/usr/share/{licenses,fish/vendor_completions.d,zsh/site-functions}
content >"$work/before"
rpms() { rpm --root "$root" --dbpath /var/lib/rpm "$@"; }
rpms --initdb 2>"$work/log"
rpms --install --nodeps "$dist"/berth-*."$machine".rpm
rpms --verify --nodeps berth berth-kubelet
inside berth version
inside kubelet --version
rpms --upgrade --nodeps --force "$dist"/berth-*."$machine".rpm
rpms --erase berth-kubelet berth
diff "$work/before" <(content) || fail 'the removal leaves something'
echo '== all proved'

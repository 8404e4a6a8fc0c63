#!/usr/bin/env bash
# run.sh IMAGE LOGS SECONDS PATTERN BERTH TESTS [PROGRAM…]: boots the machine of image.sh, runs the tests of the program TESTS whose
# names match PATTERN, with the other programs beside it, shows their output, leaves it and what the machine logged in LOGS, and ends with
# their exit code: 124 when SECONDS were over, 125 when the machine ended without a result.
#
# BERTH may be -, for none. The program podshim.tar is unpacked: the folder PODSHIM of the tests of podshims.
#
# Variables whose names begin with BERTH_ reach the tests: BERTH_CGROUP_DRIVER=cgroupfs is the driver of their agents.
#
# BERTH_LSM=selinux starts the machine with SELinux, which loads Debian's policy and permits what it denies, in place of AppArmor.
#
# BERTH_PACKAGES is a folder of Debian packages, which tests install.
#
# BERTH_POWER_CUTS=3 is how often TestVMWithoutPower cuts the power.
#
# BERTH_VM_MEMORY=2G is the memory of the machine; 3G without. BERTH_VM_NUMA=1 gives it two sockets, each a NUMA node with 1536 MiB, two
# cores and four CPUs.
#
# One machine at a time: each takes two processors.
set -euo pipefail

image=$1 logs=$2 seconds=$3 pattern=$4 berth=$5 tests=$6
shift 6
here=$(dirname "$0")

exec 9>"$(dirname "$image")/running"
flock -n 9 || { echo 'vm: waiting for another one to end'; flock 9; }

work=$(mktemp -d "$(dirname "$image")/run.XXXXXX")
qemu= shown=
leave() {
	trap '' INT TERM # a second one does not cut this short
	[ -z "$shown" ] || kill "$shown"
	if [ -n "$qemu" ]; then
		kill -TERM "$qemu"
		wait "$qemu" || true
	fi
	rm -rf "$work"
}
trap leave EXIT
trap 'exit 130' INT TERM

mkdir -p "$logs" "$work/in"
rm -f "$logs"/{tests.log,console.log,journal.log,exit-code,reboot}
cp "$here/guest.sh" "$work/in/guest"
[ "$berth" = - ] || cp -L "$berth" "$work/in/berth"
cp -L "$tests" "$work/in/tests"
# Tests read files of the checkout by paths from their own folder.
mkdir -p "$work/in/checkout/test/e2e"
cp -r "$here/../../docs" "$here/../../examples" "$work/in/checkout/"
[ $# = 0 ] || cp -L "$@" "$work/in/"
if [ -n "${BERTH_PACKAGES:-}" ]; then
	mkdir "$work/in/packages"
	cp "$BERTH_PACKAGES"/*_amd64.deb "$work/in/packages/"
fi
printf '%s\n' "$pattern" >"$work/in/pattern"
export -p | grep '^declare -x BERTH_' >"$work/in/environment" || true
# Time for starting, for a reboot, and for saying what hangs.
echo $((seconds > 300 ? seconds - 150 : seconds / 2)) >"$work/in/seconds"
tar -C "$work/in" --owner=0 --group=0 -cf "$work/in.tar" .
rm -rf "$work/in"
# What the machine writes: its own copy of the disk (holes stay holes), an area for swap, an archive of results.
cp --sparse=always --reflink=auto "$image/disk.ext4" "$work/disk"
truncate -s 1G "$work/swap"
truncate -s 64M "$work/out"

# drive prints the options of a disk.
drive() { echo "-drive if=none,id=$1,format=raw,cache=unsafe,file=$work/$2 -device virtio-blk-pci,drive=$1,serial=$1"; }

# Of the security modules of which there can be one only, the kernel takes AppArmor by itself.
security=
[ "${BERTH_LSM:-apparmor}" = apparmor ] || security="security=$BERTH_LSM"

# Without cx16, as QEMU 7 gets cmpxchg16b wrong between two processors; the kernel can do without.
cpu=max,-cx16,-la57
memory=(-smp 2 -m "${BERTH_VM_MEMORY:-3G}")
if [ -n "${BERTH_VM_NUMA:-}" ]; then
	cpu+=,vendor=GenuineIntel # QEMU gives the other vendor's cores one thread each
	memory=(-smp 8,sockets=2,cores=2,threads=2 -m 3G)
	for node in 0 1; do
		memory+=(-object "memory-backend-ram,id=memory$node,size=1536M" -numa "node,nodeid=$node,memdev=memory$node,cpus=$((4 * node))-$((4 * node + 3))")
	done
	memory+=(-numa dist,src=0,dst=1,val=21)
fi

# boot runs the machine until it ends, and keeps its code. A reboot ends it too: emulated processors do not always survive a warm one.
boot() {
	# shellcheck disable=SC2046 # each drive is four words
	timeout --signal=KILL "$((SECONDS < seconds ? seconds - SECONDS : 1))" qemu-system-x86_64 -nodefaults -display none -no-reboot \
		-machine q35 -accel tcg,thread=multi -cpu "$cpu" "${memory[@]}" \
		-kernel "$image/kernel" -initrd "$image/initrd" \
		-append "root=/dev/vda rw console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off hugepages=16 $security" \
		$(drive root disk) $(drive in in.tar) $(drive out out) $(drive swap swap) \
		-nic user,restrict=on,model=virtio-net-pci -device virtio-rng-pci \
		-chardev "file,id=console,path=$logs/console.log,append=on" -serial chardev:console \
		-device virtio-serial-pci -chardev "file,id=said,path=$logs/tests.log,append=on" -device virtserialport,chardev=said,name=tests \
		9>&- &
	qemu=$!
	status=0
	wait "$qemu" 2>/dev/null || status=$?
	qemu=
}

# results unpacks what the machine left behind, if it did.
results() { tar -C "$logs" -xf "$work/out" 2>/dev/null; }

touch "$logs/tests.log"
tail -n +1 -f "$logs/tests.log" 9>&- &
shown=$!
SECONDS=0
boot
# The kernel changes its own code while it starts, which emulated processors rarely get wrong: it panics before anything is tested.
for again in 1 2; do
	if [ "$status" -ne 0 ] || [ -s "$logs/tests.log" ] || ! grep -q 'Kernel panic' "$logs/console.log"; then break; fi
	echo "vm: the kernel did not start, another try ($again of 2)" >&2
	rm "$logs/console.log"
	boot
done
# A test asks to go on after a reboot, or after it has cut the power, which it may do more than once.
while results && [ -f "$logs/reboot" ] && [ "$status" -eq 0 ]; do
	rm "$logs/reboot"
	truncate -s 0 "$work/out"
	truncate -s 64M "$work/out"
	boot
done
sleep 1 # what tail has not shown yet
kill "$shown"
wait "$shown" 2>/dev/null || true
shown=
if [ "$status" -eq 137 ]; then
	echo "vm: not done after $seconds s; see $logs" >&2
	exit 124
fi
if ! results || ! [ -f "$logs/exit-code" ]; then
	echo "vm: the machine ended without a result (code $status of QEMU); the end of its console:" >&2
	tail -20 "$logs/console.log" >&2 || true
	exit 125
fi
# What failed before the power was cut is in no exit code.
if [ "$(cat "$logs/exit-code")" -eq 0 ] && grep -q '^--- FAIL' "$logs/tests.log"; then exit 1; fi
exit "$(cat "$logs/exit-code")"

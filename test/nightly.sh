#!/usr/bin/env bash
# Runs every part to its end, whether those before it passed or not, and lists the parts with their verdicts and times: nightly.sh [PART...].
# A part is a target of the Makefile with its variables. What is retried and passes is listed too, and belongs into test/flaky.md.
set -uo pipefail
cd "$(dirname "$0")/.."

parts=("$@")
[ "${#parts[@]}" -gt 0 ] || parts=(
	deps check walk race e2e "e2e RUNTIME=podshim" coredns metrics-server e2e-kubeadm e2e-podshim e2e-top e2e-swap packages e2e-packages benchmarks
)
RETRIED=$(mktemp)
export RETRIED
trap 'rm -f "$RETRIED"' EXIT
list=
failed=0
for part in "${parts[@]}"; do
	echo "== make $part"
	began=$SECONDS
	# shellcheck disable=SC2086 # a target and its variables
	if make --no-print-directory $part; then verdict=ok; else verdict=FAIL failed=1; fi
	list+=$(printf '%-4s  %-40s %6d s' "$verdict" "$part" $((SECONDS - began)))$'\n'
done
echo '== parts'
printf '%s' "$list"
if [ -s "$RETRIED" ]; then
	echo '== failed once, and passed when run again alone:'
	sort -u "$RETRIED"
fi
exit "$failed"

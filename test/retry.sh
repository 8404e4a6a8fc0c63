#!/usr/bin/env bash
# Runs go test and retries each failed test once, alone: retry.sh PACKAGES [FLAGS OF GO TEST...]
#
# gotestsum retries a test by its name, so a package that panics, times out or does not compile fails at once, and so does a run with more
# than ten failed tests. Tests that passed on the retry are listed at the end, and appended to the file RETRIED if that is set: each
# belongs into test/flaky.md. FORMAT is a format of gotestsum.
set -uo pipefail
tools=$(cd "$(dirname "$0")/../tools" && pwd)/go.mod
packages=$1
shift
report=$(mktemp)
trap 'rm -f "$report"' EXIT
go tool -modfile="$tools" gotestsum --no-color --format "${FORMAT:-standard-quiet}" --hide-summary skipped ${TIMINGS:+--jsonfile-timing-events "$TIMINGS"} \
	--rerun-fails=1 --rerun-fails-max-failures=10 --rerun-fails-run-root-test --rerun-fails-report "$report" --packages "$packages" -- "$@"
status=$?
# A row of the report: berth/agent.TestName: 2 runs, 1 failures
passed=$(sed -nE 's/^([^ ]+): 2 runs, 1 failures.*/\1/p' "$report")
if [ -n "$passed" ]; then
	echo 'retry: failed once, and passed when run again alone:'
	sed 's/^/  /' <<<"$passed"
	[ -z "${RETRIED:-}" ] || echo "$passed" >>"$RETRIED"
fi
exit "$status"

#!/bin/sh
# Applies patches to a directory: patch.sh DIR PATCH... Each hunk must apply at its own line and without fuzz; anything else is an error,
# after which DIR may be changed in part. git apply is no substitute: in a directory of a repository, it skips files outside of it silently.
set -eu
dir=$1
shift
for file; do
	# patch reports a hunk with an offset or fuzz on a line of its own, and says nothing about an empty patch.
	if ! said=$(LC_ALL=C patch --directory="$dir" --strip=1 --fuzz=0 --forward --batch --no-backup-if-mismatch --reject-file=- <"$file" 2>&1) ||
		printf '%s\n' "$said" | grep -qv '^patching file '; then
		printf '%s\nbundle: %s does not apply exactly\n' "$said" "$file" >&2
		exit 1
	fi
done

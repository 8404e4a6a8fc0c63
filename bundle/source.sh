#!/bin/sh
# Makes the source of the bundle's containerd and shim in DIR, a new directory by its absolute path: source.sh DIR. containerd and go-cni are
# copied from Go's module cache in the versions of go.mod. Packages of containerd/ are added to containerd's packages, then patches/ is applied.
set -eu
cd "$(dirname "$0")"
dir=$1

module() {
	go mod download "$1"
	cp -r --no-preserve=mode "$(go list -m -f '{{.Dir}}' "$1")" "$dir/$2"
}

mkdir "$dir"
cp -r go.mod go.sum cmd cni podshim "$dir/"
module github.com/containerd/containerd/v2 containerd
module github.com/containerd/go-cni go-cni
cp containerd/container/room.go "$dir/containerd/internal/cri/store/container/"
cp containerd/docker/redirected.go "$dir/containerd/core/remotes/docker/"
cp containerd/events/resting.go "$dir/containerd/internal/cri/server/events/"
cp containerd/images/bounds.go "$dir/containerd/internal/cri/server/images/"
cp containerd/io/outputs.go "$dir/containerd/internal/cri/io/"
cp containerd/mount/bare.go "$dir/containerd/core/mount/"
cp containerd/remotes/again.go "$dir/containerd/core/remotes/"
cp containerd/server/matching.go "$dir/containerd/internal/cri/server/"
cp containerd/shim/exited.go "$dir/containerd/core/runtime/v2/"
./patch.sh "$dir" patches/*.patch

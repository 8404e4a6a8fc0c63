// Pack makes the bundle: the programs of the runtime, and the images that Berth brings along, in
// one compressed file.
//
//	pack -arch amd64 -bin DIR -cni DIR -pause FILE -hello FILE -out bundle.tar.zst -hash bundle.hash
//
// The bundle is a zstd-compressed tar whose first entry is manifest.json, which lists every other
// entry with its mode, size and SHA-256. The hash written to -hash is the SHA-256 of that manifest,
// and so vouches for everything in the bundle. The same input gives the same bytes.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
)

func main() {
	bin := flag.String("bin", "", "folder of containerd, the shim and runc")
	cni := flag.String("cni", "", "folder of the CNI plugins")
	pause := flag.String("pause", "", "the pause program")
	hello := flag.String("hello", "", "the hello program")
	out := flag.String("out", "", "bundle file to write")
	hash := flag.String("hash", "", "file to write the bundle's hash to")
	b := bundle{}
	flag.StringVar(&b.arch, "arch", runtime.GOARCH, "architecture of the programs, as Go names it")
	flag.Func("component", "name=version of something bundled (repeatable)", b.addComponent)
	flag.Parse()
	if err := b.pack(*bin, *cni, *pause, *hello, *out, *hash); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

func (b *bundle) pack(bin, cni, pause, hello, out, hashFile string) error {
	for _, dir := range []struct{ from, to string }{{bin, "bin"}, {cni, "cni"}} {
		if err := b.addPrograms(dir.from, dir.to); err != nil {
			return err
		}
	}
	for _, image := range []image{
		{name: "berth.local/pause:1", program: pause, entrypoint: "/pause", user: "65535:65535", pinned: true},
		{name: "berth.local/hello:1", program: hello, entrypoint: "/hello", command: "serve", port: "8080/tcp"},
	} {
		if err := b.addImage(image); err != nil {
			return fmt.Errorf("image %s: %w", image.name, err)
		}
	}
	hash, err := b.write(out)
	if err != nil {
		return err
	}
	return os.WriteFile(hashFile, []byte(hash+"\n"), 0o644)
}

func (b *bundle) addPrograms(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	slices.Sort(names)
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			return err
		}
		b.add(filepath.Join(to, name), 0o755, content)
	}
	return nil
}

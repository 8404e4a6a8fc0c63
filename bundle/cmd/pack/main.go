// Pack makes a bundle: programs, and images of some of them, in one compressed file.
//
//	pack -arch amd64 -bin DIR -cni DIR -pause FILE -hello FILE -out bundle.tar.zst -hash bundle.hash
//	pack -arch amd64 -bin DIR -out api.tar.zst -hash api.hash
//
// The bundle is a zstd-compressed tar. Its first entry is manifest.json, which lists every other
// entry with its mode, size and SHA-256. The hash written to -hash is the SHA-256 of that manifest,
// and so authenticates the whole bundle. The output is reproducible with the same version of zstd.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
)

// sources are the inputs of a bundle. Empty ones are left out.
type sources struct{ bin, cni, pause, hello string }

func main() {
	var from sources
	flag.StringVar(&from.bin, "bin", "", "folder of programs")
	flag.StringVar(&from.cni, "cni", "", "folder of the CNI plugins")
	flag.StringVar(&from.pause, "pause", "", "the pause program")
	flag.StringVar(&from.hello, "hello", "", "the hello program")
	out := flag.String("out", "", "bundle file to write")
	hash := flag.String("hash", "", "file to write the bundle's hash to")
	b := bundle{}
	flag.StringVar(&b.arch, "arch", runtime.GOARCH, "architecture of the programs, as Go names it")
	flag.Func("component", "name=version of something bundled (repeatable)", b.addComponent)
	flag.Parse()
	if err := b.pack(from, *out, *hash); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

func (b *bundle) pack(from sources, out, hashFile string) error {
	for _, dir := range []struct{ from, to string }{{from.bin, "bin"}, {from.cni, "cni"}} {
		if dir.from == "" {
			continue
		}
		if err := b.addPrograms(dir.from, dir.to); err != nil {
			return err
		}
	}
	for _, image := range []image{
		{name: "berth.local/pause:1", program: from.pause, entrypoint: "/pause", user: "65535:65535", pinned: true},
		{name: "berth.local/hello:1", program: from.hello, entrypoint: "/hello", command: "serve", port: "8080/tcp"},
	} {
		if image.program == "" {
			continue
		}
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

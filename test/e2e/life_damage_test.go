//go:build e2e

package e2e

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// runtimeDamages are what becomes of files of the runtime while nothing runs but containers.
var runtimeDamages = []struct {
	name string
	// quiet: content that was changed and can still be read is not always detected.
	quiet bool
	// which of the files that are no regular ones are damaged, too.
	special fs.FileMode
	do      func(file string) error
}{
	{"cut", false, 0, func(file string) error { return rewriteFile(file, func(b []byte) []byte { return b[:len(b)/3] }) }},
	{"emptied", false, 0, func(file string) error { return os.Truncate(file, 0) }},
	{"bits flipped", true, 0, func(file string) error { return rewriteFile(file, flipBits) }},
	{"a folder in its place", false, fs.ModeSocket | fs.ModeNamedPipe, func(file string) error {
		if err := os.Remove(file); err != nil {
			return err
		}
		return os.MkdirAll(filepath.Join(file, "more"), 0o755)
	}},
}

func rewriteFile(file string, change func([]byte) []byte) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return os.WriteFile(file, change(b), 0o600)
}

// flipBits flips a bit in a hundred bytes, and one at least: the same ones of the same content.
func flipBits(b []byte) []byte {
	if len(b) == 0 {
		return b
	}
	h := fnv.New64()
	_, _ = h.Write(b) // which never fails
	random := rand.New(rand.NewPCG(42, h.Sum64()))
	b = bytes.Clone(b)
	for range (len(b) + 99) / 100 {
		b[random.IntN(len(b))] ^= 1 << random.IntN(8)
	}
	return b
}

// Files of the runtime inside are damaged while neither it nor an agent runs: the next agent
// serves, names the files, and runs the pods. An image whose content is intact is not lost, though
// no registry has it any more; one whose content is damaged is named, and can be imported again.
func TestDamagedRuntimeFiles(t *testing.T) {
	t.Parallel()
	n := newNodeFor(t, 3*testLimit)
	w := &damagedRuntime{node: n, home: n.place.Root + "/containerd"}
	w.live()
	for _, d := range runtimeDamages {
		w.renew() // or each damage waits longer for the back-off of those before
		w.databases(d.name, d.quiet, d.do)
	}
	for _, d := range runtimeDamages {
		w.content(d.name, d.do)
	}
	for _, d := range runtimeDamages {
		w.renew()
		w.others(d.name, d.special, d.do)
	}
}

// An import whose archive is damaged and ends in the middle, or whose program is killed there,
// keeps nobody from importing the image again.
func TestImportAfterOneThatWasCutOff(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	w := &damagedRuntime{node: n, agent: n.start()}
	file, parts := w.archive(importedImage)
	whole, err := os.ReadFile(file)
	must(t, err)
	layer := bytes.Index(whole, []byte(blobFile(parts["layer"]))) + 512 // behind its header
	half := slices.Clone(whole[:layer+1<<19])
	half[layer] ^= 1
	cut := n.place.Dir + "/cut.tar"
	must(t, os.WriteFile(cut, half, 0o644))
	if got := n.command(n.ctx, "image", "import", cut); got.code == 0 || !strings.Contains(got.errOut, "truncated") {
		t.Errorf("imported an archive that ends in the middle: %v", got)
	}
	wantText(t, "berth image import", n.berth("image", "import", file), importedImage)

	n.berth("image", "rm", importedImage)
	killed := exec.Command(n.binary, "image", "import", "-", "--run-dir", n.place.Run)
	in, err := killed.StdinPipe()
	must(t, err)
	must(t, killed.Start())
	_, err = in.Write(half)
	must(t, err)
	must(t, killed.Process.Kill())
	_ = killed.Wait() // it was killed
	until(t, "containerd to keep half of the layer", func() bool {
		return slices.ContainsFunc(glob(n.place.Root+"/containerd/io.containerd.content.v1.content/ingest/*/data"), func(file string) bool {
			fi, err := os.Stat(file)
			return err == nil && fi.Size() > 1<<18
		})
	})
	wantText(t, "berth image import", n.berth("image", "import", file), importedImage)
}

// damagedRuntime is a node whose runtime has files that are damaged.
type damagedRuntime struct {
	*node
	agent *agent
	home  string // containerd's folder

	running map[string]string // manifests of the pods, by file

	spare string            // an archive
	parts map[string]string // files of the spare image, by what they are
}

const importedImage, spareImage = "berth.test/imported:1", "berth.test/spare:1"

// live has pods run of an image of the bundle, of one that was pulled and of one that was imported.
func (w *damagedRuntime) live() {
	w.agent = w.start()
	r := newRegistry(w.t, httptest.NewServer)
	pulled, _ := r.push(w.node, "pulled")
	archive, _ := w.archive(importedImage)
	w.berth("image", "import", archive)
	var blobs map[string]string
	w.spare, blobs = w.archive(spareImage)
	w.parts = map[string]string{}
	for what, digest := range blobs {
		w.parts[what] = w.home + "/io.containerd.content.v1.content/blobs/sha256/" + strings.TrimPrefix(digest, "sha256:")
	}
	w.berth("image", "import", w.spare)
	w.running = map[string]string{
		"web.yaml": manifest("web", "serve"), "pulled.yaml": puller("pulled", pulled, "IfNotPresent"), "imported.yaml": puller("imported", importedImage, "Never"),
	}
	w.renew()
	r.server.Close()
	w.awaitListed(pulled, importedImage, spareImage)
}

// renew replaces the pods, if they run, by ones that have never ended.
func (w *damagedRuntime) renew() {
	w.t.Helper()
	for file := range w.running {
		must(w.t, os.RemoveAll(filepath.Join(w.manifests(), file))) // at first there is none
	}
	w.awaitOnly(nil)
	for file, content := range w.running {
		w.write(file, content)
	}
	w.awaitReady(damagedPods...)
}

var damagedPods = []string{"web", "pulled", "imported"}

// archive is an OCI archive of the hello image with a configuration and a layer of its own, and the
// digests of its parts.
func (w *damagedRuntime) archive(name string) (file string, parts map[string]string) {
	w.t.Helper()
	blobs := helloBlobs(w.node)
	var index, m map[string]any
	decode(w.t, blobs["index.json"], &index)
	target := func(m map[string]any, key string) map[string]any { return m[key].([]any)[0].(map[string]any) }
	digest := func(d map[string]any) string { return d["digest"].(string) }
	old := digest(target(index, "manifests"))
	decode(w.t, blobs[blobFile(old)], &m)
	var config map[string]any
	oldConfig := digest(m["config"].(map[string]any))
	decode(w.t, blobs[blobFile(oldConfig)], &config)
	config["author"] = name
	layer := layerOf(w.t, 1<<20)
	add := func(kind string, content []byte) descriptor {
		d := describe(kind, content)
		blobs[blobFile(d.Digest)] = content
		return d
	}
	ownLayer := add("application/vnd.oci.image.layer.v1.tar", layer)
	m["layers"] = append(m["layers"].([]any), ownLayer)
	rootfs := config["rootfs"].(map[string]any)
	rootfs["diff_ids"] = append(rootfs["diff_ids"].([]any), ownLayer.Digest)
	ownConfig := add("application/vnd.oci.image.config.v1+json", encode(w.t, config))
	m["config"] = ownConfig
	own := add(manifestKind, encode(w.t, m))
	blobs["index.json"] = encode(w.t, map[string]any{"schemaVersion": 2, "manifests": []any{map[string]any{
		"mediaType": manifestKind, "digest": own.Digest, "size": own.Size, "annotations": map[string]string{"io.containerd.image.name": name},
	}}})
	delete(blobs, blobFile(old))
	delete(blobs, blobFile(oldConfig))
	delete(blobs, "manifest.json")

	var b bytes.Buffer
	out := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(blobs)) {
		must(w.t, out.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(blobs[name])), Typeflag: tar.TypeReg}))
		_, err := out.Write(blobs[name])
		must(w.t, err)
	}
	must(w.t, out.Close())
	file = w.place.Dir + "/" + filepath.Base(strings.ReplaceAll(name, ":", "-")) + ".tar"
	must(w.t, os.WriteFile(file, b.Bytes(), 0o644))
	return file, map[string]string{"layer": ownLayer.Digest, "config": ownConfig.Digest, "manifest": own.Digest}
}

// awaitListed waits until the list of images beside the runtime's store has these names.
func (w *damagedRuntime) awaitListed(names ...string) {
	w.t.Helper()
	until(w.t, fmt.Sprintf("the list of images to have %q", names), func() bool {
		var l struct{ Images []struct{ Name string } }
		b, err := os.ReadFile(w.place.Root + "/runtime/images.json")
		if err != nil || json.Unmarshal(b, &l) != nil {
			return false
		}
		for _, name := range names {
			if !slices.ContainsFunc(l.Images, func(i struct{ Name string }) bool { return i.Name == name }) {
				return false
			}
		}
		return true
	})
}

// images are the names and digests of the images that there are.
func (w *damagedRuntime) images() []string {
	w.t.Helper()
	var all []struct {
		ID             string
		Names, Digests []string
	}
	decode(w.t, []byte(w.berth("image", "ls", "-o", "json")), &all)
	var out []string
	for _, i := range all {
		out = append(out, fmt.Sprint(i))
	}
	slices.Sort(out)
	return out
}

// restart damages files while neither the agent nor its runtime runs.
func (w *damagedRuntime) restart(do func(file string) error, files ...string) {
	w.t.Helper()
	w.agent.kill()
	w.endContainerd()
	for _, file := range files {
		must(w.t, do(file))
	}
	w.agent = w.start()
}

// importSpare brings the spare image back, and takes the report of its loss away.
func (w *damagedRuntime) importSpare(damage string) {
	w.t.Helper()
	until(w.t, damage+": berth check to name the image", func() bool {
		said := w.command(w.ctx, "check").String()
		return strings.Contains(said, "RuntimeStore") && strings.Contains(said, spareImage)
	})
	w.berth("image", "import", w.spare)
	must(w.t, os.Remove(w.home+".corrupt/recovery.json"))
	if said := w.command(w.ctx, "check").String(); strings.Contains(said, spareImage) {
		w.t.Errorf("%s: berth check still has:\n%s", damage, said)
	}
	w.awaitListed(spareImage)
}

// databases damages what containerd cannot do without, and a layer of an image: all pods are
// started again, once each, and images are as before but for that one.
func (w *damagedRuntime) databases(damage string, quiet bool, do func(file string) error) {
	w.t.Helper()
	old, images := w.awaitReady(damagedPods...), w.images()
	files := append(glob(w.home+"/io.containerd.snapshotter.v1.*/metadata.db"),
		w.home+"/io.containerd.metadata.v1.bolt/meta.db", w.place.Run+"/containerd/io.containerd.mount-manager.v1.bolt/mounts.db")
	w.restart(do, append(files, w.parts["layer"])...)
	w.await(damage+": the pods to run again", func(p pods) bool {
		for _, name := range damagedPods {
			if !p.ready(name) || containerID(p.named(name), "main") == containerID(old.named(name), "main") {
				return false
			}
		}
		return true
	})
	w.awaitOnly(damagedPods)
	said := w.agent.said()
	for _, file := range files {
		if !quiet || strings.HasSuffix(file, "/meta.db") {
			wantText(w.t, damage+": the agent's log", said, file)
		}
	}
	wantText(w.t, damage+": the agent's log", said, "Starting containerd with a new database", "An image is lost", spareImage, filepath.Base(w.parts["layer"]))
	w.awaitEvents("", "RuntimeStoreDamaged", spareImage)
	w.importSpare(damage)
	if diff := cmp.Diff(images, w.images()); diff != "" {
		w.t.Errorf("%s: images (-before +after):\n%s", damage, diff)
	}
	if left := glob(w.home + "/berth.salvage"); len(left) > 0 {
		w.t.Errorf("%s: %q is left", damage, left)
	}
}

// content damages the configurations of images, and a layer, under a whole database: the image is
// named and can be imported again, that of the bundle is there again, and no pod notices.
func (w *damagedRuntime) content(damage string, do func(file string) error) {
	w.t.Helper()
	for _, part := range []string{"config", "manifest"} {
		before, images := w.awaitReady(damagedPods...), w.images()
		w.restart(do, w.parts[part], w.parts["layer"], w.pauseConfig())
		w.write("next.yaml", manifest("next", "serve"))
		after := w.awaitReady(append(slices.Clone(damagedPods), "next")...)
		for _, name := range damagedPods {
			if diff := cmp.Diff(lives(pods{before.named(name)}), lives(pods{after.named(name)})); diff != "" {
				w.t.Errorf("%s: pod %s changed (-before +after):\n%s", damage, name, diff)
			}
		}
		wantText(w.t, damage+": the agent's log", w.agent.said(), filepath.Base(w.parts[part]), spareImage, filepath.Base(w.pauseConfig()))
		w.importSpare(damage)
		if diff := cmp.Diff(images, w.images()); diff != "" {
			w.t.Errorf("%s: images (-before +after):\n%s", damage, diff)
		}
		w.write("spare.yaml", puller("spare", spareImage, "Never"))
		w.awaitReady("spare")
		w.remove("spare.yaml")
		w.remove("next.yaml")
		w.awaitOnly(damagedPods)
	}
}

// pauseConfig is the configuration of the sandbox's image.
func (w *damagedRuntime) pauseConfig() string {
	w.t.Helper()
	blobs := bundledBlobs(w.node, "pause")
	var index struct{ Manifests []descriptor }
	var m struct{ Config descriptor }
	decode(w.t, blobs["index.json"], &index)
	decode(w.t, blobs[blobFile(index.Manifests[0].Digest)], &m)
	return w.home + "/io.containerd.content.v1.content/" + blobFile(m.Config.Digest)
}

// others damages all the other files of the runtime: the pods run afterwards, and new ones, too.
func (w *damagedRuntime) others(damage string, special fs.FileMode, do func(file string) error) {
	w.t.Helper()
	w.awaitReady(damagedPods...)
	images := w.images()
	w.restart(do, w.otherFiles(special)...)
	w.write("next.yaml", manifest("next", "serve"))
	w.awaitReady(append(slices.Clone(damagedPods), "next")...)
	w.remove("next.yaml")
	w.awaitOnly(damagedPods)
	if diff := cmp.Diff(images, w.images()); diff != "" {
		w.t.Errorf("%s: images (-before +after):\n%s", damage, diff)
	}
}

// otherFiles are the files of the runtime inside and of the pods' network, but for databases, what
// is in images and containers, and the agent's own files; with those of the special types.
func (w *damagedRuntime) otherFiles(special fs.FileMode) (files []string) {
	w.t.Helper()
	for _, dir := range []string{w.home, w.place.Root + "/runtime", w.place.Run} {
		must(w.t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && slices.Contains([]string{"snapshots", "rootfs", "blobs", "netns"}, d.Name()):
				return filepath.SkipDir
			case d.Type().IsRegular() && !strings.HasSuffix(path, ".db") && filepath.Dir(path) != w.place.Run,
				d.Type()&special != 0 && (filepath.Dir(path) != w.place.Run || strings.Contains(path, "/containerd.sock")):
				files = append(files, path)
			}
			return nil
		}))
	}
	var attachments []string
	for _, leases := range glob(w.place.Run + "/addresses/*") {
		attachments = append(attachments, glob("/var/lib/cni/results/"+filepath.Base(leases)+"-*")...)
	}
	files = append(files, attachments...)
	if len(files) < 20 || len(attachments) < len(damagedPods) {
		w.t.Errorf("the runtime has only these other files: %q", files)
	}
	return append(files, w.place.Run+"/containerd.json")
}

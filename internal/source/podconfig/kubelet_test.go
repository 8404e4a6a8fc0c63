package podconfig

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
	"berth/internal/source/manifest"
	"berth/internal/source/manifest/manifesttest"
)

// A static pod that a kubelet began keeps its UID for as long as its manifest says the same; one
// whose manifest has changed since is another pod.
func TestPodsOfAKubelet(t *testing.T) {
	const (
		uid   = "0123456789abcdef0123456789abcdef"
		other = "fedcba9876543210fedcba9876543210"
		apis  = "7a67ace5-9d2e-4e4c-bc98-084be7bc6b64"
	)
	web, changed := manifesttest.Pod("web", "i"), manifesttest.Pod("web", "j")
	dir := t.TempDir()
	logs, state, path := dir+"/logs", dir+"/state", dir+"/manifests/web.yaml"
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// The clock of files is coarse: what is made from now on is to be younger than what was.
	tick := func(after time.Time) {
		t.Helper()
		for now := after; !now.After(after); now = changedAt(dir + "/clock") {
			if err := os.WriteFile(dir+"/clock", []byte("tick"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	began := func(uids ...string) {
		t.Helper()
		tick(changedAt(path))
		for _, u := range uids {
			folder := filepath.Join(logs, "default_web-"+node+"_"+u)
			if err := os.MkdirAll(folder, 0o755); err != nil {
				t.Fatal(err)
			}
			tick(bornAt(folder))
		}
	}
	decoder := func() manifest.Decoder {
		s, err := newFileSource(Config{NodeName: node, Names: manifest.MangleNames, Log: slog.New(slog.DiscardHandler), StateDir: state, KubeletLogs: logs}, []string{dir + "/manifests"})
		if err != nil {
			t.Fatal(err)
		}
		return s.lastGood.decoder
	}
	is := func(d manifest.Decoder) string {
		t.Helper()
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(d.Decode(manifest.Origin{Source: pod.FileSource, Path: path}, content).Objects[0].GetUID())
	}
	want := func(when, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s the pod has the UID %s, want %s", when, got, want)
		}
	}
	if err := os.Mkdir(dir+"/manifests", 0o755); err != nil {
		t.Fatal(err)
	}
	write(web)
	own := is(manifest.Decoder{Node: node, Names: manifest.MangleNames})
	d := decoder()
	want("without logs", is(d), own)
	began(apis)
	want("with logs of an API server's pod of that name", is(d), own)
	began(other, uid)
	want("with logs that are younger than the manifest", is(d), uid)
	write(web)
	want("written again with the same content", is(d), uid)
	want("to the next agent", is(decoder()), uid)
	write(changed)
	if got := is(d); got == own || got == uid {
		t.Errorf("changed since its logs began, the pod has the UID %s, want another", got)
	}
	write(strings.Replace(web, "metadata:", "metadata:\n  uid: mine", 1))
	want("with a UID of its own", is(d), "mine")

	// A link that is made anew may lead elsewhere since, however old the file is.
	if err := errors.Join(os.RemoveAll(state), os.Rename(path, dir+"/web"), os.Symlink(dir+"/web", path)); err != nil {
		t.Fatal(err)
	}
	write(web)
	began("00000000000000000000000000000000")
	if err := errors.Join(os.Remove(path), os.Symlink(dir+"/web", path)); err != nil {
		t.Fatal(err)
	}
	want("with a younger link", is(decoder()), own)
}

// A file of UIDs that was damaged is set aside, and no pod gets what is no UID.
func TestDamagedUIDsOfAKubelet(t *testing.T) {
	const uid = "0123456789abcdef0123456789abcdef"
	for _, content := range []string{`{`, `null`, `{"own":""}`, `{"own":"../../../etc"}`} {
		dir := t.TempDir()
		path := filepath.Join(dir, "web.yaml")
		if err := os.WriteFile(path, []byte(manifesttest.Pod("web", "i")), 0o644); err != nil {
			t.Fatal(err)
		}
		for name := ""; name == "" || !changedAt(path).Before(bornAt(name)); { // the clock of files is coarse
			name = filepath.Join(dir, "logs", "default_web_"+uid)
			if err := errors.Join(os.RemoveAll(name), os.MkdirAll(name, 0o755)); err != nil {
				t.Fatal(err)
			}
		}
		file := filepath.Join(dir, kubeletUIDs)
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		k := &kubeletPods{logs: filepath.Join(dir, "logs"), file: file, log: slog.New(slog.DiscardHandler)}
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
		if got := k.running(p, manifest.Origin{Path: path}, "own"); got != uid {
			t.Errorf("with a file %s the pod has the UID %q", content, got)
		}
		if b, err := os.ReadFile(file); err != nil || string(b) != `{"own":"`+uid+`"}` {
			t.Errorf("after a file %s there is %s, %v", content, b, err)
		}
	}
}

// Another folder of manifests in place of the one before has old files. What they say is new all
// the same: their pods are not those that run, whoever began these.
func TestFolderInPlaceOfAKubelets(t *testing.T) {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
	const first, second, theirs = "11111111111111111111111111111111", "22222222222222222222222222222222", "0123456789abcdef0123456789abcdef"
	for _, runs := range []pod.UID{first, theirs} {
		dir := t.TempDir()
		path := filepath.Join(dir, "web.yaml")
		if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
			t.Fatal(err)
		}
		k := &kubeletPods{logs: filepath.Join(dir, "logs"), log: slog.New(slog.DiscardHandler)}
		k.running(p, manifest.Origin{Path: path}, first)
		for name := ""; name == "" || !changedAt(path).Before(bornAt(name)); { // the clock of files is coarse
			name = filepath.Join(dir, "logs", "default_web_"+string(runs))
			if err := errors.Join(os.RemoveAll(name), os.MkdirAll(name, 0o755)); err != nil {
				t.Fatal(err)
			}
		}
		if got := k.running(p, manifest.Origin{Path: path}, first); got != runs {
			t.Errorf("the pod that runs as %s has the UID %s", runs, got)
		}
		for range 2 { // a manifest may be read again
			if got := k.running(p, manifest.Origin{Path: path}, second); got != second {
				t.Errorf("over a pod that runs as %s, that of the other folder has the UID %s", runs, got)
			}
		}
	}
}

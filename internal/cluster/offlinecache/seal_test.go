package offlinecache

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What is sealed is opened by the same key and identity alone, and never looks the same twice.
func TestSeal(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "key")
	v := vault{dir: dir}
	if err := v.open(); err == nil || !strings.Contains(err.Error(), "is not there") {
		t.Fatalf("without a key: %v", err)
	}
	if err := v.ready(); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{dir: os.ModeDir | 0o700, v.path(): 0o600} {
		if st, err := os.Stat(path); err != nil || st.Mode() != want {
			t.Errorf("%s has mode %v, %v", path, st.Mode(), err)
		}
	}
	text, identity := []byte("password"), []byte("secret default/a")
	a, b := v.seal(text, identity), v.seal(text, identity)
	if bytes.Equal(a, b) || bytes.Contains(a, text) {
		t.Errorf("sealed: %x, %x", a, b)
	}
	again := vault{dir: dir}
	if err := again.open(); err != nil {
		t.Fatal(err)
	}
	if got, err := again.unseal(a, identity); err != nil || !bytes.Equal(got, text) {
		t.Errorf("opened: %q, %v", got, err)
	}
	if got, err := again.unseal(a, []byte("secret default/b")); err == nil {
		t.Errorf("under another identity: %q", got)
	}
	a[len(a)-1]++
	if got, err := again.unseal(a, identity); err == nil {
		t.Errorf("changed: %q", got)
	}
	if got, err := again.unseal(a[:5], identity); err == nil {
		t.Errorf("cut off: %q", got)
	}
	other := vault{dir: t.TempDir()}
	if err := other.ready(); err != nil {
		t.Fatal(err)
	}
	if got, err := other.unseal(b, identity); err == nil {
		t.Errorf("by another key: %q", got)
	}
}

// A key that others may know is refused, with what is wrong and what to do.
func TestKeyIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(path string) error
		want  string
	}{
		"mode":   {func(path string) error { return os.Chmod(path, 0o640) }, "its mode is 0640, and must be 0600"},
		"length": {func(path string) error { return os.Truncate(path, 16) }, "it has 16 bytes, and must have 32"},
		"folder": {func(path string) error {
			if err := os.Remove(path); err != nil {
				return err
			}
			return os.Mkdir(path, 0o600)
		}, "it is no file"},
		"link": {func(path string) error {
			if err := os.Rename(path, path+"2"); err != nil {
				return err
			}
			return os.Symlink(path+"2", path)
		}, "too many levels of symbolic links"},
	} {
		t.Run(name, func(t *testing.T) {
			v := vault{dir: t.TempDir()}
			if err := v.ready(); err != nil {
				t.Fatal(err)
			}
			if err := c.spoil(v.path()); err != nil {
				t.Fatal(err)
			}
			again := vault{dir: v.dir}
			for _, try := range []func() error{again.open, again.ready} {
				if err := try(); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), v.path()) {
					t.Errorf("error %v, want one with %q", err, c.want)
				}
			}
			if again.aead != nil {
				t.Error("the key is used")
			}
		})
	}
}

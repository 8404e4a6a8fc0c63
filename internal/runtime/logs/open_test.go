package logs

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// dockerLogOf puts a log file where Docker has them, and a link to it in the place of the log. The
// ids are a letter repeated.
func dockerLogOf(t *testing.T, log, folder, file string) (target string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "docker/containers", strings.Repeat(folder, 64))
	target = filepath.Join(dir, strings.Repeat(file, 64)+"-json.log")
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(target, nil, 0o600), os.Remove(log), os.Symlink(target, log)); err != nil {
		t.Fatal(err)
	}
	return target
}

// A pod that has the folder of all logs puts links there: nobody is shown a file of the host for
// the log of a container.
func TestOpenFollowsNoLink(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, put := range map[string]func(log string) error{
		"file": func(log string) error { return os.Symlink(secret, log) },
		"folder": func(log string) error {
			return errors.Join(os.Remove(filepath.Dir(log)), os.Symlink(filepath.Dir(secret), filepath.Dir(log)))
		},
		"pod": func(log string) error {
			pod := filepath.Dir(filepath.Dir(log))
			return errors.Join(os.RemoveAll(pod), os.MkdirAll(filepath.Join(filepath.Dir(secret), "c"), 0o755), os.Symlink(filepath.Dir(secret), pod))
		},
		"magic": func(log string) error { return os.Symlink("/proc/self/root"+secret, log) },
		"Docker's, of another container": func(log string) error {
			dockerLogOf(t, touch(t, log), "a", "b")
			return nil
		},
		"Docker's, to a link": func(log string) error {
			target := dockerLogOf(t, touch(t, log), "a", "a")
			return errors.Join(os.Remove(target), os.Symlink(secret, target))
		},
		"Docker's, through a link": func(log string) error {
			target := dockerLogOf(t, touch(t, log), "a", "a")
			dir := filepath.Dir(target)
			return errors.Join(os.Rename(dir, dir+"-away"), os.Symlink(dir+"-away", dir))
		},
		"pipe": func(log string) error { return unix.Mkfifo(log, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			log := filepath.Join(t.TempDir(), "pods/default_web_u/c/0.log")
			if err := errors.Join(os.MkdirAll(filepath.Dir(log), 0o755), put(log)); err != nil {
				t.Fatal(err)
			}
			f, err := Open(log)
			if err == nil {
				b, _ := io.ReadAll(f)
				t.Errorf("read %q", b)
				f.Close()
			}
			if name != "pipe" && !errors.Is(err, unix.ELOOP) {
				t.Error(err)
			}
		})
	}
}

func touch(t *testing.T, path string) string {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

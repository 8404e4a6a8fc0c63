package checkpoint_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/checkpoint"
	"berth/internal/checkpoint/checkpointtest"
)

func TestWrite(t *testing.T) {
	for name, write := range map[string]func(string, fs.FileMode, []byte) error{"durable": checkpoint.Write, "warm": checkpoint.WriteWarm} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "key.pem")
			left := filepath.Join(dir, ".key.pem.tmp") // by an agent that was killed
			if err := os.WriteFile(left, []byte("longer than what is written"), 0o666); err != nil {
				t.Fatal(err)
			}
			for mode, content := range map[fs.FileMode]string{0o600: "secret", 0o644: "public"} {
				if err := write(path, mode, []byte(content)); err != nil {
					t.Fatal(err)
				}
				b, err := os.ReadFile(path)
				if err != nil || string(b) != content {
					t.Errorf("%q, %v", b, err)
				}
				if st, err := os.Stat(path); err != nil || st.Mode() != mode {
					t.Errorf("mode %v, %v", st.Mode(), err)
				}
			}
			if all, err := os.ReadDir(dir); err != nil || len(all) != 1 {
				t.Errorf("in the folder: %v, %v", all, err)
			}
			err := write(filepath.Join(dir, "missing", "x"), 0o600, nil)
			if !errors.Is(err, fs.ErrNotExist) || err.Error() != "write "+dir+"/missing/x: no such file or directory" {
				t.Errorf("without a folder: %v", err)
			}
			defer checkpointtest.Full(t, dir, 3)()
			err = write(path, 0o600, []byte("new"+"er"))
			if !errors.Is(err, unix.ENOSPC) || err.Error() != "write "+path+": no space left on device; free space on its file system" {
				t.Errorf("on a full disk: %v", err)
			}
			if all, err := os.ReadDir(dir); err != nil || len(all) != 1 {
				t.Errorf("then in the folder: %v, %v", all, err)
			}
		})
	}
}

// Of files that belong together none is replaced when one cannot be written.
func TestWriteAll(t *testing.T) {
	for free := range int64(8) {
		dir := t.TempDir()
		a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
		write := func(content string) error {
			return checkpoint.WriteAll(checkpoint.Content{Path: a, Mode: 0o600, Bytes: []byte(content)},
				checkpoint.Content{Path: b, Mode: 0o600, Bytes: []byte(content)})
		}
		if err := write("old"); err != nil {
			t.Fatal(err)
		}
		checkpointtest.Full(t, dir, free)
		want := "new"
		if err := write("new"); err != nil {
			want = "old"
		}
		if (want == "new") != (free >= 6) {
			t.Errorf("%d bytes free: want %s", free, want)
		}
		for _, path := range []string{a, b} {
			if got, err := os.ReadFile(path); err != nil || string(got) != want {
				t.Errorf("%d bytes free: %s is %q, %v", free, path, got, err)
			}
		}
		if all, err := os.ReadDir(dir); err != nil || len(all) != 2 {
			t.Errorf("%d bytes free: in the folder: %v, %v", free, all, err)
		}
	}
}

func TestRemove(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	if err := checkpoint.Write(path, 0o600, nil); err != nil {
		t.Fatal(err)
	}
	mend := checkpointtest.ReadOnly(t, dir)
	if err := checkpoint.Remove(path); err == nil || err.Error() != "remove "+path+": read-only file system; make its file system writable" {
		t.Errorf("error %v", err)
	}
	mend()
	for range 2 {
		if err := checkpoint.Remove(path); err != nil {
			t.Error(err)
		}
	}
}

// A folder in the place of a file, which no file replaces, is set aside, whatever was set aside
// before, and can be removed.
func TestFolderInTheWay(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	for range 2 {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(path, "more"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := checkpoint.Write(path, 0o600, []byte("new")); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != "new" {
			t.Errorf("the file has %q, %v", b, err)
		}
		if _, err := os.Stat(filepath.Join(path+checkpoint.AsideSuffix, "more")); err != nil {
			t.Error(err)
		}
	}
	if _, err := checkpoint.SetAside(path); err != nil {
		t.Errorf("a file after a folder: %v", err)
	}
	if err := os.MkdirAll(filepath.Join(path, "more"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := checkpoint.SetAside(path); err != nil {
		t.Errorf("a folder after a file: %v", err)
	}
	if err := checkpoint.Remove(path + checkpoint.AsideSuffix); err != nil {
		t.Error(err)
	}
}

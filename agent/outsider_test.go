package agent_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/mod/modfile"
)

// A program of another module embeds an agent, and tests itself over a machine in memory. Go finds
// everything in its caches: nothing is downloaded, and what bin/berth is made of is not compiled
// with other flags.
func TestAnotherModule(t *testing.T) {
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for to, from := range map[string]string{
		"main.go": "testdata/library/main.go.txt", "main_test.go": "testdata/library/main_test.go.txt", "go.sum": filepath.Join(root, "go.sum"),
	} {
		content, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, to), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), modOf(t, root), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "test", "-vet=off", "-ldflags=-w", ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=mod -trimpath", "GOPROXY=off", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// modOf returns the go.mod of a module that requires this one and what this one requires.
func modOf(t *testing.T, root string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	f, err := modfile.Parse("go.mod", text, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.AddModuleStmt("example.com/pods"); err != nil {
		t.Fatal(err)
	}
	if err := f.AddRequire("berth", "v0.0.0"); err != nil {
		t.Fatal(err)
	}
	if err := f.AddReplace("berth", "", root, ""); err != nil {
		t.Fatal(err)
	}
	out, err := f.Format()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

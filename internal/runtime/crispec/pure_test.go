package crispec

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The translation is pure: nothing in it can read a file, ask a server, start a program, or look at
// the clock.
func TestNoIO(t *testing.T) {
	banned := []string{
		"crypto/rand", "golang.org/x/sys/unix", "io/ioutil", "log", "log/slog", "math/rand", "math/rand/v2", "net/http", "os", "os/exec", "syscall", "time",
	}
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range f.Imports {
			if path, err := strconv.Unquote(i.Path.Value); err != nil || slices.Contains(banned, path) {
				t.Errorf("%s imports %s: the translation depends on its arguments alone", name, i.Path.Value)
			}
		}
	}
}

// Package patches checks the changes to containerd that the bundle is built with.
package patches

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// fields are those of a patch's header, in their order.
var fields = []string{"Subject", "Why", "Without", "Upstream", "Calls"}

const maxHeaderColumns = 100

func TestHeaders(t *testing.T) {
	for i, file := range patchFiles(t) {
		t.Run(file, func(t *testing.T) {
			if want := regexp.MustCompile(fmt.Sprintf(`^%04d-[a-z0-9]+(-[a-z0-9]+)*\.patch$`, i+1)); !want.MatchString(file) {
				t.Errorf("the name does not match %s", want)
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, fault := range faults(string(text)) {
				t.Error(fault)
			}
		})
	}
}

// The build fails if a patch does not apply.
func TestSource(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "source")
	if out, err := exec.Command("../source.sh", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	added, err := filepath.Glob("../containerd/*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range added {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		if out, err := exec.Command("find", dir+"/containerd", "-path", "*/"+filepath.Base(file)).Output(); err != nil || len(out) == 0 {
			t.Errorf("%s is not added to containerd: %v", file, err)
		}
	}
}

// The source is not made, and so nothing is built, if one hunk of one patch does not apply.
func TestSourceWithBrokenPatch(t *testing.T) {
	bundle := filepath.Join(t.TempDir(), "bundle")
	if out, err := exec.Command("cp", "-r", "..", bundle).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	files := patchFiles(t)
	broken := filepath.Join(bundle, "patches", files[1])
	text, err := os.ReadFile(broken)
	if err != nil {
		t.Fatal(err)
	}
	last := strings.LastIndex(string(text), "\n ") // a line of context of the last hunk
	if err := os.WriteFile(broken, []byte(string(text[:last])+"\n changed"+string(text[last+2:])), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(filepath.Join(bundle, "source.sh"), filepath.Join(t.TempDir(), "source")).CombinedOutput()
	if err == nil || !strings.Contains(string(out), files[1]+" does not apply exactly") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestPatch(t *testing.T) {
	const header = "Subject: [PATCH] a\n---\n--- a/file\n+++ b/file\n"
	const first = "@@ -2,3 +2,3 @@\n 2\n-3\n+three\n 4\n"
	const second = "@@ -12,3 +12,3 @@\n 12\n-13\n+thirteen\n 14\n"
	for name, c := range map[string]struct{ patch, want string }{
		"exact":            {header + first + second, ""},
		"applied before":   {header + "@@ -2,3 +2,3 @@\n 2\n-three\n+3\n 4\n", "previously applied"},
		"one hunk of two":  {header + first + "@@ -12,3 +12,3 @@\n 12\n-XIII\n+thirteen\n 14\n", "Hunk #2 FAILED"},
		"offset":           {header + first + "@@ -11,3 +11,3 @@\n 12\n-13\n+thirteen\n 14\n", "(offset 1 line)"},
		"other context":    {header + "@@ -11,5 +11,5 @@\n 11\n 12\n-13\n+thirteen\n 14\n XV\n", "Hunk #1 FAILED"},
		"truncated":        {header + first + "@@ -12,3 +12,3 @@\n 12\n-13\n", "malformed"},
		"no such file":     {strings.ReplaceAll(header, "/file", "/other") + first, "find file to patch"},
		"empty":            {"", "does not apply exactly"},
		"without any diff": {"Subject: [PATCH] a\n---\n", "garbage"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			var lines []string
			for i := range 20 {
				lines = append(lines, fmt.Sprintln(i+1))
			}
			if err := os.WriteFile(filepath.Join(dir, "file"), []byte(strings.Join(lines, "")), 0o644); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "0001-a.patch")
			if err := os.WriteFile(file, []byte(c.patch), 0o644); err != nil {
				t.Fatal(err)
			}
			out, err := exec.Command("../patch.sh", dir, file).CombinedOutput()
			if (err != nil) != (c.want != "") || !strings.Contains(string(out), c.want) {
				t.Errorf("%v, want %q:\n%s", err, c.want, out)
			}
			if err != nil && !strings.Contains(string(out), file+" does not apply exactly") {
				t.Errorf("the patch is not named:\n%s", out)
			}
		})
	}
}

// A change of a patch builds another bundle.
func TestBundleKey(t *testing.T) {
	cmd := exec.Command("make", "-s", "-f", "bundle/bundle.mk", "--eval", "print: ; @echo $(BUNDLE_SOURCES)", "print")
	cmd.Dir = "../.."
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	sources := strings.Fields(string(out))
	for _, file := range append(patchFiles(t), "../patch.sh", "../source.sh") {
		if want := filepath.Join("bundle/patches", file); !slices.Contains(sources, want) {
			t.Errorf("BUNDLE_SOURCES does not contain %s", want)
		}
	}
}

func patchFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("*.patch")
	if err != nil || len(files) < 2 {
		t.Fatalf("%d patches: %v", len(files), err)
	}
	return files
}

// faults returns what is wrong with a patch.
func faults(patch string) (faults []string) {
	header, diff, ok := strings.Cut(patch, "\n---\n")
	if !ok {
		return []string{"the line --- after the header is missing"}
	}
	next := 0 // of fields
	for _, line := range strings.Split(header, "\n") {
		if len(line) > maxHeaderColumns {
			faults = append(faults, fmt.Sprintf("%q has more than %d columns", line, maxHeaderColumns))
		}
		if strings.HasPrefix(line, " ") {
			continue
		}
		name, value, _ := strings.Cut(line, ": ")
		at := slices.Index(fields, name)
		switch {
		case at < 0 || strings.TrimSpace(value) == "":
			faults = append(faults, fmt.Sprintf("%q is not a field of %v with a value", line, fields))
		case at != next:
			faults = append(faults, fmt.Sprintf("the field %s is not in the order %v", name, fields))
		case name == "Calls":
			if _, err := os.Stat(filepath.Join("../..", value)); err != nil {
				faults = append(faults, fmt.Sprintf("Calls: %v", err))
			}
		case name == "Subject" && !regexp.MustCompile(`^\[PATCH\] [a-z0-9/, -]+: \S`).MatchString(value):
			faults = append(faults, fmt.Sprintf("the subject %q is not `[PATCH] package: change`", value))
		}
		next = at + 1
	}
	if next < slices.Index(fields, "Calls") {
		faults = append(faults, fmt.Sprintf("fields of %v are missing", fields[next:]))
	}
	files := regexp.MustCompile(`(?m)^--- (.*)\n\+\+\+ (.*)\n@@ `).FindAllStringSubmatch(diff, -1)
	if len(files) == 0 {
		faults = append(faults, "no file is changed")
	}
	for _, f := range files {
		if !regexp.MustCompile(`^a/(containerd|go-cni)/.`).MatchString(f[1]) || strings.TrimPrefix(f[1], "a/") != strings.TrimPrefix(f[2], "b/") {
			faults = append(faults, fmt.Sprintf("%s and %s are not one file of containerd or go-cni", f[1], f[2]))
		}
	}
	return faults
}

func TestFaults(t *testing.T) {
	const good = "Subject: [PATCH] mount: a\nWhy: b\n c\nWithout: d\nUpstream: e\n---\n--- a/containerd/f\n+++ b/containerd/f\n@@ -1 +1 @@\n-a\n+b\n"
	for name, c := range map[string]struct{ patch, want string }{
		"good":           {good, ""},
		"no header":      {good[strings.Index(good, "--- a"):], "the line --- after the header"},
		"no reason":      {strings.Replace(good, "Why: b\n c\n", "", 1), "Without is not in the order"},
		"empty reason":   {strings.Replace(good, "Why: b\n c\n", "Why:\n", 1), `"Why:" is not a field`},
		"no upstream":    {strings.Replace(good, "Upstream: e\n", "", 1), "[Upstream Calls] are missing"},
		"unknown field":  {strings.Replace(good, "Upstream: e\n", "Upstream: e\nDate: f\n", 1), `"Date: f" is not a field`},
		"unknown callee": {strings.Replace(good, "Upstream: e\n", "Upstream: e\nCalls: bundle/none\n", 1), "Calls: "},
		"subject":        {strings.Replace(good, "[PATCH] ", "", 1), "the subject"},
		"no diff":        {good[:strings.Index(good, "--- a")], "no file is changed"},
		"other file":     {strings.ReplaceAll(good, "containerd/f", "runc/f"), "not one file of containerd"},
		"wide":           {strings.Replace(good, " c\n", " "+strings.Repeat("c", 100)+"\n", 1), "more than 100 columns"},
	} {
		t.Run(name, func(t *testing.T) {
			got := strings.Join(faults(c.patch), "\n")
			if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// config is what these tests read of a configuration of nfpm.
type config struct {
	Name     string `yaml:"name"`
	Contents []struct {
		Src      string `yaml:"src"`
		Dst      string `yaml:"dst"`
		Type     string `yaml:"type"`
		Packager string `yaml:"packager"`
	} `yaml:"contents"`
	Scripts map[string]string `yaml:"scripts"`
}

func readConfig(t *testing.T, name string) (c config, text string) {
	t.Helper()
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(content, &c); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return c, string(content)
}

// The configurations of packages name files of the repository that there are, made files that
// packaging.mk makes, variables that it sets, and scripts that a shell can read.
func TestConfigurations(t *testing.T) {
	makefile, err := os.ReadFile("packaging.mk")
	if err != nil {
		t.Fatal(err)
	}
	made := string(makefile) + sbomFile + licencesFile
	variable := regexp.MustCompile(`\$\{(\w+)\}`)
	for _, name := range []string{"nfpm.yaml", "nfpm-kubelet.yaml"} {
		c, text := readConfig(t, name)
		for _, m := range variable.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(string(makefile), m[1]+"=") {
				t.Errorf("%s: packaging.mk does not set %s", name, m[1])
			}
		}
		var programs int
		for _, f := range c.Contents {
			if strings.HasPrefix(f.Dst, "/usr/bin/") {
				programs++
			}
			if f.Type == "dir" || f.Type == "symlink" {
				continue
			}
			if file, ok := strings.CutPrefix(f.Src, "bin/package/"); ok {
				if want := strings.TrimSuffix(filepath.Base(file), ".service"); !strings.HasPrefix(file, "man/") && !strings.HasPrefix(file, "completions/") && !strings.Contains(made, want) {
					t.Errorf("%s: packaging.mk does not make %s", name, f.Src)
				}
				continue
			}
			if files, err := filepath.Glob(filepath.Join("..", f.Src)); err != nil || len(files) == 0 {
				t.Errorf("%s: no file is %s, %v", name, f.Src, err)
			}
		}
		if programs != 1 {
			t.Errorf("%s has %d programs, want one", name, programs)
		}
		if len(c.Scripts) != 3 {
			t.Errorf("%s has the scripts %v, want those after an installation, before a removal and after it", name, c.Scripts)
		}
		for _, script := range c.Scripts {
			if out, err := exec.Command("sh", "-n", filepath.Join("..", script)).CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", script, err, out)
			}
		}
	}
}

// The units in docs are what the packages' units are made of: a first line that says where to copy
// them, and the path of a program that was copied by hand.
func TestUnits(t *testing.T) {
	for name, want := range map[string]string{
		"berth.service":   "\nExecStart=/usr/local/bin/berth run $BERTH_EXTRA_ARGS /etc/berth/manifests\n",
		"kubelet.service": "\nExecStart=/usr/bin/kubelet ",
	} {
		text, err := os.ReadFile(filepath.Join("../docs", name))
		if err != nil {
			t.Fatal(err)
		}
		first, rest, _ := strings.Cut(string(text), "\n")
		if !strings.HasPrefix(first, "# ") || !strings.HasPrefix(rest, "[Unit]\n") {
			t.Errorf("%s begins with %q and then not with [Unit]: packaging.mk takes the first line off", name, first)
		}
		if !strings.Contains(rest, want) {
			t.Errorf("%s lacks %q", name, want)
		}
	}
	variables, err := os.ReadFile("berth.default")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(variables), "\nBERTH_EXTRA_ARGS=\"\"\n") {
		t.Error("berth.default does not set the variable of berth.service")
	}
}

//go:build e2e && podshim

package podshim

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// cgroups is where the hierarchies are.
const cgroups = "/sys/fs/cgroup"

// unified reports whether there is one hierarchy, of version 2.
func unified() bool {
	_, err := os.Stat(cgroups + "/cgroup.controllers")
	return err == nil
}

// hierarchies are the cgroup hierarchies: those of version 1, or the one of version 2.
func hierarchies() []string {
	if unified() {
		return []string{cgroups}
	}
	found, _ := filepath.Glob(cgroups + "/*/cgroup.clone_children")
	var out []string
	for _, f := range found {
		out = append(out, filepath.Dir(f))
	}
	return out
}

// slower is how much slower than others the machine is.
func slower() time.Duration {
	n, err := strconv.Atoi(os.Getenv("BERTH_SLOWER"))
	if err != nil {
		return 1
	}
	return time.Duration(n)
}

// makeGroups makes the cgroups of the rig: one for containerd, one for pods.
func (r *rig) makeGroups() {
	r.Helper()
	if len(hierarchies()) == 0 {
		r.Fatalf("%s has no cgroups", cgroups)
	}
	for _, h := range hierarchies() {
		for _, g := range []string{r.group, r.group + "/runtime", r.group + "/pods"} {
			if unified() {
				r.delegate(h + filepath.Dir(g))
			}
			r.must(os.Mkdir(h+g, 0o755))
			if filepath.Base(h) == "cpuset" {
				for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
					b, err := os.ReadFile(h + filepath.Dir(g) + "/" + f)
					r.must(err)
					r.must(os.WriteFile(h+g+"/"+f, b, 0o644))
				}
			}
		}
	}
}

// delegate has the cgroups below a cgroup of version 2 have its controllers.
func (r *rig) delegate(dir string) {
	r.Helper()
	b, err := os.ReadFile(dir + "/cgroup.controllers")
	r.must(err)
	for c := range strings.FieldsSeq(string(b)) {
		if err := os.WriteFile(dir+"/cgroup.subtree_control", []byte("+"+c), 0o644); err != nil {
			r.Logf("controller %s in %s: %v", c, dir, err)
		}
	}
}

// slice is the name of the systemd slice of the rig's pods.
func (r *rig) slice() string { return strings.ReplaceAll(r.group[1:], "-", "_") + ".slice" }

// parent is the cgroup of the rig's pods.
func (r *rig) parent() string {
	if r.systemd {
		return "/" + r.slice()
	}
	return r.group + "/pods"
}

// groupOf is the cgroup of a container, from the root of a hierarchy.
func (r *rig) groupOf(id string) string {
	if r.systemd {
		return "/" + r.slice() + "/cri-containerd-" + id + ".scope"
	}
	return r.group + "/pods/" + id
}

// volatile are files of cgroups that say what happens, not what was asked for.
var volatile = regexp.MustCompile(`usage|stat|current|peak|procs|tasks|threads|events|failcnt|pressure|^cpuacct|^blkio\.(throttle\.)?(io|bfq\.io|sectors|time|reset)|under_oom|oom_control|force_empty|slabinfo|^cgroup\.kill|reclaim|process_api|rdtry`)

// settings are what the files of a container's cgroups have, without what changes by itself.
func (r *rig) settings(id string) map[string]string {
	r.Helper()
	out := map[string]string{}
	for _, h := range hierarchies() {
		dir := h + r.groupOf(id)
		entries, err := os.ReadDir(dir)
		r.must(err)
		for _, e := range entries {
			if e.IsDir() || volatile.MatchString(e.Name()) {
				continue
			}
			b, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if errors.Is(err, fs.ErrPermission) {
				continue // to be written only
			}
			text := string(b)
			if err != nil {
				text = err.Error()
				text = text[strings.LastIndex(text, ": ")+1:]
			}
			lines := strings.Split(strings.TrimSpace(text), "\n")
			slices.Sort(lines) // rules for devices have no order
			out[filepath.Base(h)+"/"+e.Name()] = strings.Join(lines, "\n")
		}
	}
	return out
}

// differing are the settings that are not the same.
func differing(a, b map[string]string) []string {
	var out []string
	for k, v := range a {
		if w, ok := b[k]; !ok || v != w {
			out = append(out, fmt.Sprintf("%s: %q and %q", k, v, w))
		}
	}
	for k, w := range b {
		if _, ok := a[k]; !ok {
			out = append(out, fmt.Sprintf("%s: nothing and %q", k, w))
		}
	}
	slices.Sort(out)
	return out
}

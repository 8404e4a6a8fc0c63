//go:build e2e && podshim

package podshim

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// facts are what a process sees of its container: what it looked at, and what was there.
type facts map[string]string

// readFacts reads what before and the payload's probe have written.
func readFacts(text string) (facts, error) {
	out := facts{}
	for line := range strings.Lines(text) {
		what, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		v, err := strconv.Unquote(value)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		out[what] = v
	}
	if len(out) < 100 {
		return nil, fmt.Errorf("%d facts are too few: %s", len(out), text)
	}
	return out, nil
}

// row is one configuration of a container. The same program sees the same in it, whoever made it.
type row struct {
	name string
	// pod is one of pods; empty is a plain one.
	pod    string
	change func(*place, *cri.ContainerConfig)
	// refused is the field by whose name pod shims refuse this; it goes when they no longer do.
	refused string
	exec    bool // it is an exec that looks around, in a container that sleeps
}

// place is where a row runs: a pod by one handler, with a container that sleeps.
type place struct {
	*rig
	handler, name string
	pod, beside   string // ids
	host          string // a folder with mounts of all kinds
	sandbox       *cri.PodSandboxConfig
	own           map[string]string // namespaces of the container that sleeps
	err           error             // why there is no such pod
}

// config is a container of the place that looks around.
func (p *place) config(name string, args ...string) *cri.ContainerConfig {
	c := containerConfig(p.rig, p.name, name, args...)
	if p.handler == "stock" { // containerd writes its log
		c.LogPath, c.Annotations[logAnnotation] = name+".log", p.logFile(p.name, name)
	}
	return c
}

// place makes a pod.
func (r *rig) place(handler, kind, host string) *place {
	r.Helper()
	p := &place{rig: r, handler: handler, name: strings.ReplaceAll(kind, " ", "-") + "-" + handler, host: host}
	c := podConfig(r, p.name)
	p.sandbox = c
	c.Hostname = strings.ReplaceAll(kind, " ", "-")
	pods[kind](c)
	if kind == "based" {
		handler += "-based"
	}
	if p.pod, p.err = r.podBy(handler, c); p.err != nil {
		return p
	}
	beside := p.config("beside", "sleep")
	beside.Linux.SecurityContext.NamespaceOptions = c.Linux.SecurityContext.NamespaceOptions
	if p.beside, p.err = r.containerIn(p.pod, c, beside, func() {}); p.err == nil {
		p.own = namespacesOf(strconv.Itoa(r.pidOf(p.beside)))
	}
	return p
}

// namespacesOf are the namespaces of a process.
func namespacesOf(pid string) map[string]string {
	out := map[string]string{}
	found, _ := filepath.Glob("/proc/" + pid + "/ns/*")
	for _, f := range found {
		out[filepath.Base(f)], _ = os.Readlink(f)
	}
	return out
}

// pidOf is the first process of a container.
func (r *rig) pidOf(id string) int {
	r.Helper()
	ctx, cancel := r.within()
	defer cancel()
	a, err := r.rt.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id, Verbose: true})
	r.must(err)
	var info struct{ Pid int }
	r.must(json.Unmarshal([]byte(a.Info["info"]), &info))
	if info.Pid == 0 {
		r.Fatalf("container %s has no process", id)
	}
	return info.Pid
}

// probe is what looks around.
var probe = []string{"/before", "/payload", "probe"}

// look runs what looks around in a container of a row, and returns what it saw.
func (p *place) look(name string, w row) (facts, error) {
	p.Helper()
	if p.err != nil {
		return nil, p.err
	}
	c := p.config(name, "sleep")
	if !w.exec {
		c.Command = probe
	}
	c.Linux.SecurityContext.NamespaceOptions = p.sandbox.Linux.SecurityContext.NamespaceOptions
	w.change(p, c)
	id, err := p.containerIn(p.pod, p.sandbox, c, func() {})
	if err != nil {
		return nil, err
	}
	out, code := p.output(id, name, w)
	if code != 0 {
		return nil, fmt.Errorf("ended with %d: %s", code, out)
	}
	f, err := readFacts(out)
	if err != nil {
		return nil, err
	}
	p.plain(f, id)
	return f, nil
}

// output is what was written by what looks around.
func (p *place) output(id, name string, w row) (string, int32) {
	p.Helper()
	if w.exec {
		o := p.execSync(id, 0, probe...)
		return o.Out + o.Err + o.Error, o.Code
	}
	status := p.exits(id)
	var text strings.Builder
	b, err := os.ReadFile(p.logFile(p.name, name))
	p.must(err)
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(line, " ", 4)
		if f[2] == "P" { // a part of a long line
			f[3] = strings.TrimSuffix(f[3], "\n")
		}
		text.WriteString(strings.ReplaceAll(f[3], "\r", ""))
	}
	return text.String(), status.ExitCode
}

var numbers = regexp.MustCompile(`\b[0-9a-f]{64}\b|pipe:\[\d+\]|/dev/pts/\d+|CRI_IMAGE_\w+|snapshots/\d+`)

// plain takes out of facts what differs from pod to pod and from run to run.
func (p *place) plain(f facts, id string) {
	host := namespacesOf("self")
	for what, v := range f {
		if n, ok := strings.CutPrefix(what, "namespace "); ok {
			switch v {
			case host[n]:
				v = "the host's"
			case p.own[n]:
				v = "shared with another container"
			default:
				v = "its own"
			}
		}
		for from, to := range map[string]string{
			id: "ID", p.pod: "POD", p.dir: "DIR", p.host: "HOST", p.group: "/GROUP", p.name: "NAME",
		} {
			if from != "" {
				v = strings.ReplaceAll(v, from, to)
			}
		}
		// The files of a pod lie where its controller wants them.
		v = strings.NewReplacer("DIR/state/keepers/POD/", "FILES/", "DIR/root/io.containerd.grpc.v1.cri/sandboxes/POD/", "FILES/", "/NAME", "").Replace(v)
		f[what] = numbers.ReplaceAllString(v, "N")
	}
}

// difference is one that stays.
type difference struct {
	what           string // a fact, as an expression
	stock, podshim string // what is seen, as expressions
	why            string
	v1             bool // with cgroups of version 1 alone
}

func (d difference) covers(what, stock, podshim string) bool {
	for expression, text := range map[string]string{d.what: what, d.stock: stock, d.podshim: podshim} {
		if !regexp.MustCompile(`^(?s:` + expression + `)$`).MatchString(text) {
			return false
		}
	}
	return true
}

// absent is the value of a fact that there is not.
const absent = "(absent)"

// compare tells of each difference between two sets of facts that is not one of differences, whose
// places in used are set.
func compare(t *testing.T, name string, stock, podshim facts, used map[int]bool) {
	t.Helper()
	all := maps.Clone(stock)
	maps.Copy(all, podshim)
	for _, what := range slices.Sorted(maps.Keys(all)) {
		s, ok := stock[what]
		if !ok {
			s = absent
		}
		k, ok := podshim[what]
		if !ok {
			k = absent
		}
		if s == k {
			continue
		}
		at := slices.IndexFunc(differences, func(d difference) bool { return d.covers(what, s, k) })
		if at < 0 {
			t.Errorf("%s: %s:\n\tpodshim %q\n\tstock  %q", name, what, k, s)
		}
		if at >= 0 {
			used[at] = true
		}
	}
}

// Each configuration looks the same from inside with pod shims as with stock shims.
func TestInside(t *testing.T) {
	r := newRig(t)
	// Who is root in a user namespace alone passes by this folder on the way to the files of its
	// container.
	r.must(os.Chmod(r.dir, 0o711))
	host := hostFolder(t)
	r.must(os.MkdirAll(r.path("cdi"), 0o755))
	r.must(os.WriteFile(r.path("cdi", "test.json"), []byte(strings.ReplaceAll(cdi, "HOST", host)), 0o644))
	places, used, names := map[string]*place{}, map[int]bool{}, map[string]bool{}
	for i, row := range rows {
		if names[row.name] {
			t.Fatalf("two rows are %q", row.name)
		}
		names[row.name] = true
		kind := row.pod
		if kind == "" {
			kind = "plain"
		}
		seen := map[string]facts{}
		for _, h := range handlers {
			if places[h+kind] == nil {
				places[h+kind] = r.place(h, kind, host)
			}
			if h == "stock" && row.refused != "" {
				continue
			}
			f, err := places[h+kind].look(fmt.Sprintf("row%d", i), row)
			switch {
			case h == "podshim" && row.refused != "" && err == nil:
				t.Errorf("%s: pod shims do not refuse %s any more: take the declaration away", row.name, row.refused)
			case h == "podshim" && row.refused != "" && !strings.Contains(err.Error(), row.refused+":"):
				t.Errorf("%s: pod shims refuse it as %q, and the row says %s", row.name, err, row.refused)
			case row.refused == "" && err != nil:
				t.Errorf("%s, %s: %v", row.name, h, err)
			}
			seen[h] = f
		}
		if seen["podshim"] != nil && seen["stock"] != nil {
			compare(t, row.name, seen["stock"], seen["podshim"], used)
		}
	}
	for i, d := range differences {
		if !used[i] && !(d.v1 && unified()) {
			t.Errorf("nothing differs any more in %q: %s", d.what, d.why)
		}
	}
	for _, p := range r.pods() {
		r.must(r.remove(p.Id))
	}
	r.wantNothingLeft()
}

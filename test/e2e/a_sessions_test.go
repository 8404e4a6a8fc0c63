//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// sessionsDir has the scripts. Those in its folder alone change the node, and run after the others.
const sessionsDir = "testdata/kubectl"

// sessionsLimit is how long all scripts may take, beside other tests.
var sessionsLimit = patience(15 * time.Minute)

// sessionLimit is how long a script waits for what is to come.
var sessionLimit = patience(time.Minute)

// TestSessions types the same sessions of kubectl to a kube-apiserver with one node, and to the
// local API of a machine. What each command prints and its exit code are to be the same, but for
// what sessionDifferences lists. A script has its own namespace, of the same name at both.
// SESSIONS, a pattern of file names, runs some of them.
// The name of this file has them begin among the first tests, as they take longest.
func TestSessions(t *testing.T) {
	t.Parallel()
	registry, err := filepath.EvalSymlinks(os.Getenv("APISERVER"))
	if err != nil {
		t.Fatalf("APISERVER must name the program registry, as make e2e does: %v", err)
	}
	programs := t.TempDir()
	must(t, os.Symlink(registry, programs+"/kubectl"))
	cluster := &sessionServer{name: "cluster", programs: programs, kubeconfig: clusterOfSessions(t)}
	local := &sessionServer{name: "local", programs: programs, kubeconfig: machineOfSessions(t)}
	pattern := os.Getenv("SESSIONS")
	for _, part := range []struct{ name, dir string }{{"side by side", sessionsDir}, {"alone", sessionsDir + "/alone"}} {
		files, err := filepath.Glob(part.dir + "/" + strings.TrimSuffix(pattern+"*", "**") + "*.txtar")
		must(t, err)
		t.Run(part.name, func(t *testing.T) {
			var both sync.WaitGroup
			for _, s := range []*sessionServer{cluster, local} {
				both.Go(func() { t.Run(s.name, func(t *testing.T) { s.run(t, files) }) })
			}
			both.Wait()
		})
	}
	t.Run("differences", func(t *testing.T) {
		wantSameSessions(t, cluster.sessions, local.sessions)
		if pattern == "" {
			wantAllNeeded(t)
		}
	})
}

// clusterOfSessions returns the kubeconfig of a kube-apiserver that has one node, which is named
// after the host.
func clusterOfSessions(t *testing.T) string {
	t.Helper()
	plane := newControlPlaneFor(t, sessionsLimit)
	name := hostName(t)
	plane.up("--node", name)
	c := &cluster{
		node: newNodeFor(t, sessionsLimit), plane: plane, name: name, namespace: "default", changed: make(chan struct{}, 1),
		identity: []string{"--kubeconfig", plane.dir + "/node-" + name + ".kubeconfig"},
		port:     freePort(t), healthzPort: freePort(t), readOnlyPort: freePort(t),
	}
	must(t, c.watch())
	c.configure("clusterDNS: [10.96.0.10]\n") // pods are warned where there is none
	c.startMember()
	return plane.dir + "/admin.kubeconfig"
}

// machineOfSessions returns the kubeconfig of a local API.
func machineOfSessions(t *testing.T) string {
	t.Helper()
	n := apiNode{newNodeFor(t, sessionsLimit)}
	n.start()
	n.kubectl("wait", "--for=create", "node", hostName(t), "--timeout=30s")
	n.kubectl("wait", "--for=condition=Ready", "node", hostName(t), "--timeout=30s")
	return n.place.Run + "/kubeconfig"
}

// sessionServer is one of the servers that the scripts run over.
type sessionServer struct {
	name, programs, kubeconfig string

	mu       sync.Mutex
	sessions map[string][]said // by script
}

// said is a command of a script and what came of it.
type said struct {
	command string
	answer
}

// oneByOne runs scripts one after the other. If they were parallel tests, each would begin after
// all others of the package, when nothing is left that runs beside them.
type oneByOne struct{ *testing.T }

func (oneByOne) Parallel() {}

func (o oneByOne) Run(name string, script func(testscript.T)) {
	o.T.Run(name, func(t *testing.T) { script(oneByOne{t}) })
}

func (oneByOne) Verbose() bool { return testing.Verbose() }

// run runs scripts.
func (s *sessionServer) run(t *testing.T, files []string) {
	if len(files) == 0 {
		return
	}
	server, err := clientcmd.LoadFromFile(s.kubeconfig)
	must(t, err)
	testscript.RunT(oneByOne{t}, testscript.Params{
		Files: files,
		Setup: func(env *testscript.Env) error { return s.setup(env, server.DeepCopy()) },
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"kubectl": s.kubectl, "unordered": s.unordered, "until": s.until, "follow": follow, "shows": shows, "stop": s.stop, "join": s.join, "page": s.page,
		},
		Condition: func(name string) (bool, error) {
			if name != "cluster" && name != "local" {
				return false, fmt.Errorf("unknown condition %q", name)
			}
			return name == s.name, nil
		},
		ContinueOnError:     true,
		RequireUniqueNames:  true,
		RequireExplicitExec: true,
	})
}

// setup gives a script its namespace.
func (s *sessionServer) setup(env *testscript.Env, config *clientcmdapi.Config) error {
	script := strings.TrimPrefix(filepath.Base(env.WorkDir), "script-")
	namespace := "s-" + script
	for _, c := range config.Contexts {
		c.Namespace = namespace
	}
	kubeconfig := env.WorkDir + "/.kubeconfig"
	for _, a := range config.AuthInfos {
		for _, file := range []*string{&a.ClientCertificate, &a.ClientKey} {
			if *file != "" && !filepath.IsAbs(*file) {
				*file = filepath.Join(filepath.Dir(s.kubeconfig), *file)
			}
		}
	}
	if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
		return err
	}
	node, err := os.Hostname()
	if err != nil {
		return err
	}
	env.Setenv("PATH", s.programs+":"+os.Getenv("PATH"))
	env.Setenv("KUBECONFIG", kubeconfig)
	env.Setenv("KUBECACHEDIR", s.programs+"/cache-"+s.name)
	env.Setenv("SERVER", config.Clusters[config.Contexts[config.CurrentContext].Cluster].Server)
	env.Setenv("NS", namespace)
	env.Setenv("NODE", strings.ToLower(node))
	env.Setenv("IMAGE", helloImage)
	env.Setenv("GOGC", "off") // none lives for long, and there are a thousand
	for _, args := range [][]string{
		{"create", "namespace", namespace},
		{"wait", "--for=create", "serviceaccount/default", "--timeout=60s"},
		{"wait", "--for=create", "configmap/kube-root-ca.crt", "--timeout=60s"},
	} {
		c := exec.Command(s.programs+"/kubectl", args...)
		c.Env = env.Vars
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	env.Defer(func() { // what it has left is none of the others' load
		c := exec.Command(s.programs+"/kubectl", "delete", "namespace", namespace, "--wait=false")
		c.Env = env.Vars
		if out, err := c.CombinedOutput(); err != nil {
			env.T().Fatal(fmt.Sprintf("delete namespace %s: %v: %s", namespace, err, out))
		}
	})
	return nil
}

// sessionCommand is kubectl in the folder and with the variables of a script.
func sessionCommand(ts *testscript.TestScript, args []string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), patience(time.Minute))
	ts.Defer(cancel)
	c := exec.CommandContext(ctx, ts.Getenv("PATH")[:strings.Index(ts.Getenv("PATH"), ":")]+"/kubectl", args...)
	c.Dir = ts.MkAbs(".")
	c.Env = slices.Clone(os.Environ())
	for _, name := range []string{"PATH", "HOME", "KUBECONFIG", "KUBECACHEDIR", "EDITOR", "KUBE_EDITOR", "WORK"} {
		c.Env = append(c.Env, name+"="+ts.Getenv(name))
	}
	return c
}

// record remembers what a command said, without what differs between any two servers.
func (s *sessionServer) record(ts *testscript.TestScript, command string, a answer) {
	plain := strings.NewReplacer(ts.Getenv("WORK"), "$WORK", ts.Getenv("SERVER"), "$SERVER", strings.TrimPrefix(ts.Getenv("SERVER"), "https://"), "$SERVER")
	a.out, a.errOut = normal(plain.Replace(a.out)), normal(plain.Replace(a.errOut))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions == nil {
		s.sessions = map[string][]said{}
	}
	s.sessions[ts.Name()] = append(s.sessions[ts.Name()], said{plain.Replace(command), a})
}

// kubectl runs kubectl, and remembers what it said: kubectl ARGUMENT...
func (s *sessionServer) kubectl(ts *testscript.TestScript, neg bool, args []string) {
	s.record(ts, "kubectl "+strings.Join(args, " "), runKubectl(ts, neg, args))
}

// unordered is kubectl whose lines come in any order: unordered ARGUMENT...
func (s *sessionServer) unordered(ts *testscript.TestScript, neg bool, args []string) {
	a := runKubectl(ts, neg, args)
	a.out = strings.Join(slices.Sorted(strings.SplitAfterSeq(normal(a.out), "\n")), "")
	s.record(ts, "kubectl "+strings.Join(args, " "), a)
}

// runKubectl runs kubectl, which is to succeed, or with neg to fail.
func runKubectl(ts *testscript.TestScript, neg bool, args []string) answer {
	err := ts.Exec("timeout", append([]string{"60", "kubectl"}, args...)...)
	a := answer{out: ts.ReadFile("stdout"), errOut: ts.ReadFile("stderr")}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		a.code = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if neg != (err != nil) {
		ts.Fatalf("kubectl ends with code %d", a.code)
	}
	return a
}

// until runs kubectl until it succeeds and what it prints is like a pattern, and forgets it; with !
// until that is no longer so: until PATTERN ARGUMENT...
func (s *sessionServer) until(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: until PATTERN ARGUMENT...")
	}
	pattern, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	var out []byte
	for end := time.Now().Add(sessionLimit); ; {
		out, err = sessionCommand(ts, args[1:]).CombinedOutput()
		if neg != (err == nil && pattern.Match(out)) {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("it does not come to %s; now it says, %v:\n%s", args[0], err, out)
		}
		time.Sleep(100 * time.Millisecond) // until the next look
	}
}

// followed is a command that goes on beside its script.
type followed struct {
	*exec.Cmd
	said [2]safeBuffer // standard output and standard error
}

// safeBuffer is one that is read while it is written to.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

var followers sync.Map // *followed, by the folder of the script and the name

func followerOf(ts *testscript.TestScript, args []string, n int) *followed {
	if len(args) < n {
		ts.Fatalf("the name of what was begun by follow is missing, or a pattern")
	}
	f, ok := followers.Load(ts.Getenv("WORK") + "/" + args[0])
	if !ok {
		ts.Fatalf("nothing was begun by follow as %s", args[0])
	}
	return f.(*followed)
}

// follow begins a kubectl that goes on: follow NAME ARGUMENT...
func follow(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: follow NAME ARGUMENT...")
	}
	f := &followed{Cmd: sessionCommand(ts, args[1:])}
	f.Stdout, f.Stderr = &f.said[0], &f.said[1]
	ts.Check(f.Start())
	key := ts.Getenv("WORK") + "/" + args[0]
	followers.Store(key, f)
	ts.Defer(func() {
		if f.ProcessState == nil {
			_ = f.Process.Kill() // it may have ended
			_ = f.Wait()
		}
		followers.Delete(key)
	})
}

// shows waits until a kubectl that goes on has printed what is like a pattern: shows NAME PATTERN
func shows(ts *testscript.TestScript, _ bool, args []string) {
	f := followerOf(ts, args, 2)
	pattern, err := regexp.Compile("(?m)" + args[1])
	ts.Check(err)
	for end := time.Now().Add(sessionLimit); !pattern.MatchString(f.said[0].String() + f.said[1].String()); {
		if time.Now().After(end) {
			ts.Fatalf("%s never shows %s, but:\n%s%s", args[0], args[1], f.said[0].String(), f.said[1].String())
		}
		time.Sleep(20 * time.Millisecond) // until the next look
	}
}

// stop interrupts a kubectl that goes on, and remembers what it said, which is then in the file
// NAME.out: stop NAME
func (s *sessionServer) stop(ts *testscript.TestScript, neg bool, args []string) {
	ts.Check(followerOf(ts, args, 1).Process.Signal(os.Interrupt))
	s.join(ts, neg, args)
}

// join is stop that waits for the command to end by itself: join NAME
func (s *sessionServer) join(ts *testscript.TestScript, _ bool, args []string) {
	f := followerOf(ts, args, 1)
	err := f.Wait()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		ts.Fatalf("%s: %v", args[0], err)
	}
	a := answer{code: f.ProcessState.ExitCode(), out: f.said[0].String(), errOut: f.said[1].String()}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]+".out"), []byte(a.out+a.errOut), 0o600))
	s.record(ts, strings.Join(f.Args, " "), a)
}

var forwardedPort = regexp.MustCompile(`Forwarding from 127\.0\.0\.1:(\d+)`)

// page asks the port that a kubectl port-forward listens on, and writes what it answers to the file
// NAME.page: page NAME
func (s *sessionServer) page(ts *testscript.TestScript, _ bool, args []string) {
	shows(ts, false, []string{args[0], forwardedPort.String()})
	port := forwardedPort.FindStringSubmatch(followerOf(ts, args, 1).said[0].String())[1]
	answered, err := http.Get("http://127.0.0.1:" + port + "/")
	ts.Check(err)
	defer answered.Body.Close()
	b, err := io.ReadAll(answered.Body)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]+".page"), b, 0o600))
	s.record(ts, "page "+args[0], answer{code: answered.StatusCode, out: string(b)})
}

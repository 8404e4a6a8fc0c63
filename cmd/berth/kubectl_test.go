package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"berth/internal/api/server"
	"berth/internal/host/rootlock"
	"berth/internal/localapi"
)

// become is how the process is replaced by kubectl.
type become struct {
	path      string
	argv, env []string
}

// kubectlOf runs a command that is one of kubectl, with a kubectl that is not there, in a run
// directory.
func kubectlOf(t *testing.T, runDir string, args ...string) (got become, err error) {
	t.Helper()
	k := &kubectl{
		globalFlags: &globalFlags{runDir: runDir},
		program:     func(_ context.Context, runDir string) (string, error) { return filepath.Join(runDir, "program"), nil },
		become: func(path string, argv, env []string) error {
			got = become{path, argv, env}
			return nil
		},
	}
	root := &cobra.Command{
		Use: "berth", SilenceErrors: true, SilenceUsage: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return applyEnvironment(cmd) },
	}
	root.AddCommand(append(k.commands(slices.Collect(maps.Keys(kubectlCommands))...), k.command())...)
	root.SetArgs(args)
	err = root.ExecuteContext(t.Context())
	return got, err
}

// answerView has an agent in the run directory that answers those who ask for a view.
func answerView(t *testing.T, runDir string, answer http.HandlerFunc) {
	t.Helper()
	l, err := net.Listen("unix", server.SocketPath(runDir))
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+server.PathView, answer)
	agent := &httptest.Server{Listener: l, Config: &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}}
	agent.Start()
	t.Cleanup(agent.Close)
}

func TestKubectlArguments(t *testing.T) {
	t.Setenv("KUBECONFIG", "/elsewhere")
	dir, without := t.TempDir(), t.TempDir()
	answerView(t, dir, http.NotFound)
	answerView(t, without, http.NotFound)
	local := "KUBECONFIG=" + dir + "/kubeconfig"
	if err := os.WriteFile(dir+"/kubeconfig", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		runDir string
		args   []string
		want   []string
		env    string
	}{
		{dir, []string{"kubectl", "get", "pods", "-A"}, []string{"kubectl", "get", "pods", "-A"}, local},
		{"/nowhere", []string{"kubectl", "get", "--run-dir", dir, "pods"}, []string{"kubectl", "get", "pods"}, local},
		{"/nowhere", []string{"kubectl", "--run-dir=" + dir, "get", "pods"}, []string{"kubectl", "get", "pods"}, local},
		{dir, []string{"kubectl", "exec", "p", "--", "x", "--run-dir", "y", "--kubeconfig", "z"}, []string{"kubectl", "exec", "p", "--", "x", "--run-dir", "y", "--kubeconfig", "z"}, local},
		{"/nowhere", []string{"kubectl", "--kubeconfig", "mine", "get", "pods"}, []string{"kubectl", "--kubeconfig", "mine", "get", "pods"}, "KUBECONFIG=/elsewhere"},
		{"/nowhere", []string{"kubectl", "get", "pods", "--kubeconfig=mine"}, []string{"kubectl", "get", "pods", "--kubeconfig=mine"}, "KUBECONFIG=/elsewhere"},
		{"/nowhere", []string{"kubectl"}, []string{"kubectl"}, "KUBECONFIG=/nowhere/kubeconfig"},
		{"/nowhere", []string{"kubectl", "completion", "bash"}, []string{"kubectl", "completion", "bash"}, "KUBECONFIG=/nowhere/kubeconfig"},
		{"/nowhere", []string{"kubectl", "get", "--help"}, []string{"kubectl", "get", "--help"}, "KUBECONFIG=/nowhere/kubeconfig"},
		{"/nowhere", []string{"kubectl", "version", "--client"}, []string{"kubectl", "version", "--client"}, "KUBECONFIG=/nowhere/kubeconfig"},
		{dir, []string{"get", "pods", "-w"}, []string{"kubectl", "get", "pods", "-w"}, local},
		{"/nowhere", []string{"logs", "--run-dir=" + dir, "-f", "web"}, []string{"kubectl", "logs", "-f", "web"}, local},
		{dir, []string{"kubectl", "__complete", "get", "p"}, []string{"kubectl", "__complete", "get", "p"}, local},
	} {
		got, err := kubectlOf(t, c.runDir, c.args...)
		if err != nil {
			t.Errorf("%q: %v", c.args, err)
			continue
		}
		if diff := cmp.Diff(c.want, got.argv); diff != "" {
			t.Errorf("%q (-want +got):\n%s", c.args, diff)
		}
		if n := len(slices.DeleteFunc(slices.Clone(got.env), func(v string) bool { return !strings.HasPrefix(v, "KUBECONFIG=") })); n != 1 || !slices.Contains(got.env, c.env) {
			t.Errorf("%q: %d times KUBECONFIG, or not %s", c.args, n, c.env)
		}
		if !strings.HasSuffix(got.path, "/program") {
			t.Errorf("%q becomes %s", c.args, got.path)
		}
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"get", "pods", "--run-dir"}, "flag needs an argument: --run-dir"},
		{[]string{"kubectl", "--run-dir", dir + "/none", "get", "pods"}, "no agent is running on " + dir + "/none"},
		{[]string{"exec", "p", "--run-dir", without, "--", "x", "--kubeconfig", "y"}, "there is no kubeconfig " + without + "/kubeconfig: the local API has no port"},
	} {
		if _, err := kubectlOf(t, dir, c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %s", c.args, err, c.want)
		}
	}

	t.Setenv("BERTH_LOCAL_API_PROGRAM", "/by/variable/program")
	if got, err := kubectlOf(t, dir, "get", "pods"); err != nil || got.path != "/by/variable/program" {
		t.Errorf("the variable names another program: %+v, %v", got, err)
	}
}

// An agent without a local API has a view of its node, which kubectl is sent to.
func TestKubectlOverAView(t *testing.T) {
	dir := t.TempDir()
	refused, asked := "", 0
	answerView(t, dir, func(w http.ResponseWriter, _ *http.Request) {
		asked++
		if refused != "" {
			http.Error(w, refused, http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	t.Setenv(kubectlCache, "")
	got, err := kubectlOf(t, dir, "get", "pods")
	if err != nil || !slices.Contains(got.env, "KUBECONFIG="+dir+"/view/kubeconfig") || !slices.Contains(got.env, kubectlCache+"="+dir+"/view/cache") {
		t.Errorf("%v, %q", err, got.env)
	}
	t.Setenv(kubectlCache, "/mine")
	if got, err := kubectlOf(t, dir, "get", "pods"); err != nil || slices.Contains(got.env, kubectlCache+"="+dir+"/view/cache") {
		t.Errorf("a cache of the user's own: %v, %q", err, got.env)
	}
	if got, err := kubectlOf(t, dir, "get", "--help"); err != nil || !slices.Contains(got.env, "KUBECONFIG="+dir+"/kubeconfig") || asked != 2 {
		t.Errorf("help: %v, %q, a view was asked for %d times", err, got.env, asked)
	}
	refused = "view of the node: no room"
	if _, err := kubectlOf(t, dir, "get", "pods"); err == nil || err.Error() != refused+"; --kubeconfig names that of another API server" {
		t.Errorf("a view that cannot be had: %v", err)
	}
}

// A command that fails leaves the exit code of kubectl to kubectl; that it cannot become kubectl is
// told.
func TestKubectlThatCannotBeRun(t *testing.T) {
	k := &kubectl{
		globalFlags: &globalFlags{},
		program:     func(context.Context, string) (string, error) { return "/p", nil },
		become:      func(string, []string, []string) error { return errors.New("no room") },
	}
	var errOut bytes.Buffer
	if code := executeAs(t.Context(), k.command(), []string{"options"}, &bytes.Buffer{}, &errOut); code != 1 || !strings.Contains(errOut.String(), "run kubectl (/p): no room") {
		t.Errorf("exit code %d: %s", code, &errOut)
	}
}

// Root never runs what lies in the home of another user, which HOME names after sudo.
func TestFolderOfKubectl(t *testing.T) {
	rootDir, runDir := madeAPI(t)
	t.Setenv("XDG_CACHE_HOME", "/srv/ann/.cache")
	for _, c := range []struct {
		runDir string
		uid    int
		want   string
	}{
		{runDir, 0, rootDir + "/programs"},
		{"/nowhere", 0, "/var/lib/berth/programs"},
		{runDir, 1000, "/srv/ann/.cache/berth-programs"},
	} {
		if got, err := programFolder(c.runDir, c.uid); err != nil || got != c.want {
			t.Errorf("user %d in %s: %s, %v; want %s", c.uid, c.runDir, got, err, c.want)
		}
	}
}

func TestParseCompletions(t *testing.T) {
	words, directive, err := parseCompletions([]byte("pods\tp\nnodes\n:4\n"))
	if err != nil || directive != cobra.ShellCompDirectiveNoFileComp || !slices.Equal(words, []string{"pods\tp", "nodes"}) {
		t.Errorf("%q, %v, %v", words, directive, err)
	}
	if words, directive, err := parseCompletions([]byte(":0\n")); err != nil || directive != cobra.ShellCompDirectiveDefault || len(words) != 0 {
		t.Errorf("%q, %v, %v", words, directive, err)
	}
	for _, out := range []string{"", "pods\n", "pods\n:x\n"} {
		if _, _, err := parseCompletions([]byte(out)); err == nil {
			t.Errorf("%q is taken", out)
		}
	}
}

func TestNamesOfTheProgram(t *testing.T) {
	for _, c := range []struct{ argv, want []string }{
		{[]string{"/usr/bin/berth", "get", "pods"}, []string{"get", "pods"}},
		{[]string{"/usr/bin/kubelet", "--v=2"}, []string{"kubelet", "--v=2"}},
		{[]string{"kubectl", "get", "pods"}, []string{"kubectl", "get", "pods"}},
		{[]string{"/usr/local/bin/kubectl-berth", "explain", "web"}, []string{"explain", "web"}},
		{[]string{"kubectl_complete-berth", "expl"}, []string{"__complete", "expl"}},
	} {
		if got := commandArgs(c.argv); !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, want %q", c.argv, got, c.want)
		}
	}
}

// apiCommand runs a command over the local API of a root directory.
func apiCommand(t *testing.T, args ...string) (out, errOut string, code int) {
	t.Helper()
	var o, e bytes.Buffer
	code = execute(t.Context(), args, &o, &e)
	return o.String(), e.String(), code
}

// madeAPI makes a local API in folders of short names, and ends it.
func madeAPI(t *testing.T) (rootDir, runDir string) {
	t.Helper()
	runDir, err := os.MkdirTemp("", "run")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(runDir) })
	rootDir = t.TempDir()
	api, err := localapi.Open(localapi.Config{RootDir: rootDir, RunDir: runDir, NodeName: "n", Address: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := api.Close(); err != nil {
		t.Fatal(err)
	}
	// As the agent of the run directory says it.
	last, err := json.Marshal(map[string]string{"rootDir": rootDir})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(runDir+"/agent.json", last, 0o600); err != nil {
		t.Fatal(err)
	}
	return rootDir, runDir
}

func TestKubeconfigCommand(t *testing.T) {
	rootDir, runDir := madeAPI(t)
	rules := rootDir + "/access.yaml"
	if err := os.WriteFile(rules, []byte("# mine\nrules:\n  - users: [a] # as it was\n    verbs: [get]\n    resources: [nodes]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, errOut, code := apiCommand(t, "kubeconfig", "--run-dir", runDir, "--user", "ci", "--group", "dev", "-n", "web", "--verbs", "get,list", "--resources", "pods,pods/log")
	if code != 0 {
		t.Fatal(errOut)
	}
	made, err := clientcmd.Load([]byte(out))
	if err != nil {
		t.Fatal(err)
	}
	admin, err := clientcmd.LoadFromFile(runDir + "/kubeconfig")
	if err != nil {
		t.Fatal(err)
	}
	c := made.Contexts[made.CurrentContext]
	if c == nil || c.AuthInfo != "ci" || c.Namespace != "web" || made.Clusters[c.Cluster].Server != admin.Clusters[c.Cluster].Server || len(made.AuthInfos["ci"].ClientKeyData) == 0 {
		t.Errorf("made:\n%s", out)
	}
	want := "# mine\nrules:\n  - users: [a] # as it was\n    verbs: [get]\n    resources: [nodes]\n" +
		"  - users: [ci]\n    verbs: [get, list]\n    namespaces: [web]\n    resources: [pods, pods/log]\n"
	if got, err := os.ReadFile(rules); err != nil || string(got) != want {
		t.Errorf("%v\n%s", err, got)
	}
	file := filepath.Join(t.TempDir(), "ci.kubeconfig")
	if out, errOut, code := apiCommand(t, "kubeconfig", "--run-dir", runDir, "--user", "ci", "--server", "https://box:6443", "--expires", "24h", "-o", file); code != 0 || out != "" {
		t.Error(out, errOut)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if second, err := clientcmd.LoadFromFile(file); err != nil || second.Clusters["berth"].Server != "https://box:6443" {
		t.Errorf("%v, %v", second, err)
	}
	if out, errOut, code := apiCommand(t, "kubeconfig", "--run-dir", runDir, "--user", "ci", "--remove"); code != 0 || !strings.HasPrefix(out, "Took user ci out of "+rules+" (rules that named it: 1).") {
		t.Error(out, errOut)
	}
	if got, err := os.ReadFile(rules); err != nil || string(got) != "# mine\nrules:\n  - users: [a] # as it was\n    verbs: [get]\n    resources: [nodes]\n" {
		t.Errorf("%v\n%s", err, got)
	}
}

func TestKubeconfigCommandRefuses(t *testing.T) {
	rootDir, runDir := madeAPI(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "--user is missing"},
		{[]string{"--user", ""}, "--user is missing"},
		{[]string{"--user", "a\nb"}, `"a\nb" is no name`},
		{[]string{"--user", "ci", "--verbs", "gett", "--resources", "pods"}, `"gett" is no verb: use get, list,`},
		{[]string{"--user", "ci", "--verbs", "get", "--resources", "pod"}, `the local API has no resource "pod"`},
		{[]string{"--user", "ci", "--verbs", "get"}, "the rule is about nothing: add resources"},
		{[]string{"--user", "ci", "--expires", "1s"}, "it may be for 1m0s to 87600h0m0s"},
		{[]string{"--user", "ci", "--expires", "soon"}, `invalid argument "soon" for "--expires"`},
		{[]string{"--user", "ci", "--token"}, `--token is for service accounts, and --user "ci" is none: write system:serviceaccount:NAMESPACE:NAME`},
		{[]string{"--user", "system:serviceaccount:web", "--token"}, "--token is for service accounts"},
		{[]string{"--user", "system:serviceaccount:web:robot", "--token"}, "no agent serves the local API"},
		{[]string{"--user", "system:serviceaccount:web:robot", "--token", "--group", "g"}, "[group token]"},
		{[]string{"--user", "nobody", "--remove"}, rootDir + `/access.yaml has no rule of a user "nobody"`},
		{[]string{"--user", "ci", "--remove", "--verbs", "get"}, "[remove verbs]"},
		{[]string{"--user", "ci", "--root-dir", rootDir + "/none"}, "root directory " + rootDir + `/none has no local API: start the agent with "berth run"`},
	} {
		_, errOut, code := apiCommand(t, append([]string{"kubeconfig", "--run-dir", runDir}, c.args...)...)
		if code != 1 || !strings.Contains(errOut, c.want) {
			t.Errorf("%q: exit code %d: %s; want %s", c.args, code, errOut, c.want)
		}
	}
	if err := os.Remove(runDir + "/kubeconfig"); err != nil {
		t.Fatal(err)
	}
	if _, errOut, code := apiCommand(t, "kubeconfig", "--run-dir", runDir, "--user", "ci"); code != 1 || !strings.Contains(errOut, "where the API is says the kubeconfig of an agent that runs, or --server: open "+runDir+"/kubeconfig: no such file") {
		t.Errorf("without the administrator's: exit code %d: %s", code, errOut)
	}
	if _, err := os.Stat(rootDir + "/access.yaml"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was refused left a rule: %v", err)
	}
}

func TestBackupCommands(t *testing.T) {
	rootDir, runDir := madeAPI(t)
	file := filepath.Join(t.TempDir(), "b")
	out, errOut, code := apiCommand(t, "backup", "--run-dir", runDir, file)
	info, err := os.Stat(file)
	if code != 0 || err != nil || info.Mode().Perm() != 0o600 || !strings.HasPrefix(out, "Wrote "+file+", ") {
		t.Fatalf("exit code %d, %s%s, %v", code, out, errOut, err)
	}
	was, err := os.Stat(rootDir + "/api/objects.db")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file+".cut", []byte("berth: no backup"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, errOut, code := apiCommand(t, "restore", "--run-dir", runDir, file+".cut"); code != 1 || !strings.Contains(errOut, "this is no backup of berth backup") {
		t.Errorf("what is no backup: exit code %d: %s", code, errOut)
	}
	unlock, err := rootlock.Lock(rootDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"backup", "restore"} {
		if _, errOut, code := apiCommand(t, name, "--run-dir", runDir, file); code != 1 || !strings.Contains(errOut, "another agent uses it (pid ") || !strings.Contains(errOut, "berth stop") {
			t.Errorf("%s while an agent has the directory: exit code %d: %s", name, code, errOut)
		}
	}
	if now, err := os.Stat(rootDir + "/api/objects.db"); err != nil || !os.SameFile(was, now) {
		t.Errorf("what was refused replaced the objects: %v", err)
	}
	unlock()
	if out, errOut, code := apiCommand(t, "restore", "--run-dir", runDir, file); code != 0 || out != "Restored the objects of "+rootDir+". Those from before are in "+rootDir+"/api/objects.db.replaced.\n" {
		t.Errorf("exit code %d, %s%s", code, out, errOut)
	}
	if _, errOut, code := apiCommand(t, "backup", "--run-dir", runDir, "--root-dir", rootDir+"/none", file); code != 1 || !strings.Contains(errOut, "has no local API") {
		t.Errorf("of nothing: exit code %d: %s", code, errOut)
	}
	left, err := filepath.Glob(filepath.Dir(file) + "/.*")
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if code := execute(ctx, []string{"backup", "--run-dir", runDir, filepath.Dir(file) + "/none/b"}, &bytes.Buffer{}, &bytes.Buffer{}); code != 1 {
		t.Errorf("into a folder that is not there: exit code %d", code)
	}
}

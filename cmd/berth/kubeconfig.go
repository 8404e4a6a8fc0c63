package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"berth/agent"
	"berth/internal/checkpoint"
	"berth/internal/localapi"
	"berth/internal/localapi/auth"
)

type kubeconfigFlags struct {
	rootDir, user, server, output        string
	groups, namespaces, verbs, resources []string
	expires                              time.Duration
	token, remove                        bool
}

func newKubeconfigCommand(g *globalFlags) *cobra.Command {
	var f kubeconfigFlags
	cmd := &cobra.Command{
		Use:   "kubeconfig --user NAME",
		Short: "Create or revoke a kubeconfig for the local API",
		Long: `Create a kubeconfig for a user of the local API ("berth run"), and print it.

It contains a client certificate or, with --token, a service account token, which is valid until the account is deleted or --expires is over.
--verbs and --resources add a rule to access.yaml in the agent's root directory, which you can edit; changes apply immediately. Without them, no
rule is added, and the existing rules for the user and its groups apply. For an existing user, a certificate and a rule are added.

--remove deletes the rules of the user. Certificates cannot be revoked: they identify the user until they expire, with the permissions of its
groups only.`,
		Example: `  berth kubeconfig --user ann --verbs '*' --resources '*' -o ann.kubeconfig
  berth kubeconfig --user ci --namespace web --verbs get,list,watch --resources pods,pods/log --expires 720h
  berth kubeconfig --user system:serviceaccount:web:deployer --token -n web --verbs '*' --resources pods
  berth kubeconfig --user ci --remove`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.user == "" {
				return errors.New("--user is missing: the name of whom the kubeconfig is for")
			}
			rootDir, err := apiRoot(f.rootDir, g.runDir)
			if err != nil {
				return err
			}
			if f.remove {
				return f.removeUser(cmd, rootDir)
			}
			return f.make(cmd, rootDir, g.runDir)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.user, "user", "", "name of the user")
	fl.StringArrayVar(&f.groups, "group", nil, "a group that the user is a member of (can be repeated)")
	fl.StringSliceVarP(&f.namespaces, "namespace", "n", nil, "namespaces of the rule (default: all); a single one is also the namespace of the kubeconfig")
	fl.StringSliceVar(&f.verbs, "verbs", nil, "verbs of the rule: get, list, watch, create, update, patch, delete, deletecollection, or * for all")
	fl.StringSliceVar(&f.resources, "resources", nil, "resources of the rule: plurals such as pods, pods/log or leases.coordination.k8s.io, or * for all")
	fl.BoolVar(&f.token, "token", false, "use a token instead of a certificate, for --user system:serviceaccount:NAMESPACE:NAME")
	fl.DurationVar(&f.expires, "expires", 365*24*time.Hour, "validity of the certificate or token")
	fl.StringVar(&f.server, "server", "", "URL of the API server in the kubeconfig (default: that of <run dir>/kubeconfig)")
	fl.StringVarP(&f.output, "output", "o", "", "file to write to, readable only by its owner (default: standard output)")
	fl.BoolVar(&f.remove, "remove", false, "remove the rules of the user")
	fl.StringVar(&f.rootDir, "root-dir", "", rootDirUsage)
	for _, name := range []string{"group", "namespace", "verbs", "resources", "token", "expires", "server", "output"} {
		cmd.MarkFlagsMutuallyExclusive("remove", name)
	}
	cmd.MarkFlagsMutuallyExclusive("token", "group")
	return cmd
}

const rootDirUsage = "directory of everything that the agent keeps (default: that of the last agent in the run directory, or " + defaultRootDir + ")"

// agentRoot returns the given root directory, else that of the agent of the run directory.
func agentRoot(given, runDir string) (string, error) {
	if given != "" {
		return filepath.Abs(given)
	}
	runDir, err := filepath.Abs(runDir)
	if err != nil {
		return "", err
	}
	last, err := agent.LastConfig(runDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", onlyRoot(err)
	}
	return cmp.Or(last.RootDir, defaultRootDir), nil
}

// apiRoot returns the agentRoot, which must contain the files of a local API.
func apiRoot(given, runDir string) (string, error) {
	rootDir, err := agentRoot(given, runDir)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(rootDir, localapi.Dir)); errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf(`root directory %s has no local API: start the agent with "berth run", or name another directory by --root-dir`, rootDir)
	} else if err != nil {
		return "", onlyRoot(err)
	}
	return rootDir, nil
}

// onlyRoot adds the remedy to a permission error.
func onlyRoot(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: this is for root only: try with sudo", err)
	}
	return err
}

func (f kubeconfigFlags) make(cmd *cobra.Command, rootDir, runDir string) error {
	server, err := f.url(runDir)
	if err != nil {
		return err
	}
	token, err := f.requestToken(cmd, runDir)
	if err != nil {
		return err
	}
	authority, err := auth.OpenAuthority(filepath.Join(rootDir, localapi.Dir))
	if err != nil {
		return onlyRoot(err)
	}
	content, err := auth.Kubeconfig(authority, filepath.Join(rootDir, localapi.RulesFile), auth.Grant{
		Rule: auth.Rule{Users: []string{f.user}, Groups: f.groups, Verbs: f.verbs, Resources: f.resources, Namespaces: f.namespaces},
		Life: f.expires, Server: server, Token: token,
	})
	if err != nil {
		return onlyRoot(err)
	}
	if f.output == "" {
		_, err = cmd.OutOrStdout().Write(content)
		return err
	}
	return checkpoint.Write(f.output, 0o600, content)
}

// requestToken returns a token of the service account that --user names, or "" without --token.
func (f kubeconfigFlags) requestToken(cmd *cobra.Command, runDir string) (string, error) {
	if !f.token {
		return "", nil
	}
	account, ok := strings.CutPrefix(f.user, "system:serviceaccount:")
	namespace, name, two := strings.Cut(account, ":")
	if !ok || !two {
		return "", fmt.Errorf("--token is for service accounts, and --user %q is none: write system:serviceaccount:NAMESPACE:NAME, or leave --token away for a certificate", f.user)
	}
	runDir, err := filepath.Abs(runDir)
	if err != nil {
		return "", err
	}
	token, err := localapi.RequestToken(cmd.Context(), runDir, namespace, name, f.expires)
	if err != nil {
		return "", fmt.Errorf("token of %q: %w", f.user, onlyRoot(err))
	}
	return token, nil
}

// url returns the given URL of the API, else that of the administrator's kubeconfig.
func (f kubeconfigFlags) url(runDir string) (string, error) {
	if f.server != "" {
		return f.server, nil
	}
	path, err := kubeconfigIn(runDir)
	if err != nil {
		return "", err
	}
	admin, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return "", fmt.Errorf("where the API is says the kubeconfig of an agent that runs, or --server: %w", err)
	}
	for _, c := range admin.Clusters {
		return c.Server, nil // the kubeconfig has one cluster
	}
	return "", fmt.Errorf("where the API is: %s names no server; --server says it", path)
}

func (f kubeconfigFlags) removeUser(cmd *cobra.Command, rootDir string) error {
	path := filepath.Join(rootDir, localapi.RulesFile)
	named, err := auth.RemoveUser(path, f.user)
	if err != nil {
		return onlyRoot(err)
	}
	if named == 0 {
		return fmt.Errorf("%s has no rule of a user %q", path, f.user)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "Took user %s out of %s (rules that named it: %d). Its certificates and tokens hold until they end, and may what its groups may.\n", f.user, path, named)
	return err
}

package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"
)

//go:embed init.yaml
var initConfig string

//go:embed join.yaml
var joinConfig string

//go:embed 10-kubeadm.conf
var dropIn []byte

// programs are what the cluster is made of, by their paths.
type programs struct {
	own, berth, controlplane, kubeadm, kubectl, coredns, metricsServer string

	version string // of Kubernetes, as v1.36.3
	service []byte // the unit file of the kubelet, with kubeadm's drop-in
}

// cluster is two nodes, in a folder.
type cluster struct {
	dir      string
	programs programs
	log      io.Writer
	nodes    []*node
	stop     context.CancelFunc // ends registry and the way to the API server
}

// start makes the machines: namespaces, network, registry, and Berth's runtime on each of them. An
// error leaves what end removes.
func (c *cluster) start(ctx context.Context) error {
	if err := os.Mkdir(c.dir, 0o700); err != nil {
		return fmt.Errorf("%w: end the cluster that is there with kubeadm-cluster down %s", err, c.dir)
	}
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	c.stop = stop
	var steps errgroup.Group
	steps.Go(func() error { return registryServer(serving, c.dir+"/registry.sock", c.programs) })
	for _, m := range nodes {
		n, err := startNode(c, m)
		if err != nil {
			return errors.Join(err, steps.Wait())
		}
		c.nodes = append(c.nodes, n)
	}
	if err := errors.Join(connect(ctx, c.nodes[0], c.nodes[1]), c.serveAPI(serving)); err != nil {
		return errors.Join(err, steps.Wait())
	}
	for _, n := range c.nodes {
		steps.Go(func() error { return n.startRuntime(ctx) })
	}
	return steps.Wait()
}

// startRuntime has the runtime inside of Berth run, which kubeadm wants before it runs a kubelet.
func (n *node) startRuntime(ctx context.Context) error {
	_, err := n.run(ctx, "berth", "runtime")
	return err
}

// serveAPI listens on the machine's loopback for the API server of the first node.
func (c *cluster) serveAPI(ctx context.Context) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { l.Close() })
	go forward(l, "unix", c.nodes[0].home+"/apiserver.sock")
	return os.WriteFile(c.dir+"/address", []byte(l.Addr().String()), 0o600)
}

// init makes the first node the control plane of a cluster, and writes the kubeconfig for the
// machine.
func (c *cluster) init(ctx context.Context) error {
	n := c.nodes[0]
	if err := c.writeConfig(n, initConfig, nil); err != nil {
		return err
	}
	out, err := n.run(ctx, "kubeadm", "init", "--config", n.home+"/kubeadm.yaml")
	fmt.Fprintln(c.log, out)
	if err != nil {
		return err
	}
	return c.writeKubeconfig(ctx)
}

// writeKubeconfig writes the administrator's kubeconfig, with the server where this machine finds
// it. init.yaml has its certificate name that address.
func (c *cluster) writeKubeconfig(ctx context.Context) error {
	admin, err := c.nodes[0].run(ctx, "cat", "/etc/kubernetes/admin.conf")
	if err != nil {
		return err
	}
	address, err := os.ReadFile(c.dir + "/address")
	if err != nil {
		return err
	}
	server := "    server: https://" + c.nodes[0].address + ":6443\n"
	if !strings.Contains(admin, server) {
		return fmt.Errorf("admin.conf has no %q", server)
	}
	admin = strings.Replace(admin, server, fmt.Sprintf("    server: https://%s\n", address), 1)
	return os.WriteFile(c.kubeconfig(), []byte(admin), 0o600)
}

func (c *cluster) kubeconfig() string { return c.dir + "/kubeconfig" }

// join makes a node a member, with a token that kubeadm makes on the first one.
func (c *cluster) join(ctx context.Context, n *node) error {
	line, err := c.nodes[0].run(ctx, "kubeadm", "token", "create", "--print-join-command")
	if err != nil {
		return err
	}
	words := strings.Fields(line) // kubeadm join ADDRESS --token TOKEN --discovery-token-ca-cert-hash HASH
	if len(words) < 7 {
		return fmt.Errorf("kubeadm token create says %q", line)
	}
	if err := c.writeConfig(n, joinConfig, map[string]string{"API_SERVER": words[2], "TOKEN": words[4], "CA_HASH": words[6]}); err != nil {
		return err
	}
	out, err := n.run(ctx, "kubeadm", "join", "--config", n.home+"/kubeadm.yaml")
	fmt.Fprintln(c.log, out)
	return err
}

// writeConfig writes kubeadm's configuration for a node.
func (c *cluster) writeConfig(n *node, text string, more map[string]string) error {
	values := []string{"NODE_NAME", n.name, "NODE_ADDRESS", n.address, "NODE_IPS", n.address + "," + n.address6, "PATCHES", n.home + "/patches", "REGISTRY", registryAddress, "VERSION", c.programs.version}
	for name, value := range more {
		values = append(values, name, value)
	}
	return os.WriteFile(n.home+"/kubeadm.yaml", []byte(strings.NewReplacer(values...).Replace(text)), 0o600)
}

// end ends everything and removes the folder.
func (c *cluster) end() error {
	var errs []error
	for _, n := range c.nodes {
		errs = append(errs, n.end())
	}
	if c.stop != nil {
		c.stop()
	}
	return errors.Join(append(errs, os.RemoveAll(c.dir))...)
}

// findPrograms finds what the cluster is made of beside this program, as make builds them.
func findPrograms(own, version, service string) (programs, error) {
	bin := filepath.Dir(own)
	p := programs{
		own: own, berth: bin + "/berth", controlplane: bin + "/controlplane", kubeadm: bin + "/kubeadm", kubectl: bin + "/kubectl",
		coredns: bin + "/coredns", metricsServer: bin + "/metrics-server", version: version,
	}
	for _, program := range []string{p.berth, p.controlplane, p.kubeadm, p.kubectl, p.coredns, p.metricsServer} {
		if _, err := os.Stat(program); err != nil {
			return p, fmt.Errorf("%w: build it with make kubeadm", err)
		}
	}
	var err error
	if p.service, err = os.ReadFile(service); err != nil {
		return p, err
	}
	p.service = append(p.service, dropIn...)
	return p, nil
}

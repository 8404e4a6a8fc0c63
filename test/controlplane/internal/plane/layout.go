package plane

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"

	"berth/test/controlplane/internal/kubeconfig"
	"berth/test/controlplane/internal/pki"
)

// Layout is the folder of a control plane: it names what is in it.
type Layout string

// Kubeconfig is the kubeconfig of somebody who may do everything.
func (l Layout) Kubeconfig() string { return l.kubeconfig("admin") }

// Node is the kubeconfig of a node: the user system:node:NAME of the group system:nodes.
func (l Layout) Node(name string) string { return l.kubeconfig("node-" + name) }

// Log is the file that a component writes to; "controlplane" is the program itself.
func (l Layout) Log(component string) string { return l.logs() + "/" + component + ".log" }

func (l Layout) kubeconfig(of string) string { return string(l) + "/" + of + ".kubeconfig" }
func (l Layout) lock() string                { return string(l) + "/lock" }
func (l Layout) socket() string              { return string(l) + "/control.sock" }
func (l Layout) data() string                { return string(l) + "/etcd" }
func (l Layout) logs() string                { return string(l) + "/logs" }
func (l Layout) pki() string                 { return string(l) + "/pki" }
func (l Layout) cert(of string) string       { return l.pki() + "/" + of + ".crt" }
func (l Layout) key(of string) string        { return l.pki() + "/" + of + ".key" }
func (l Layout) serviceAccountKey() string   { return l.key("service-account") }

// The pairs of certificate and key that components read from files.
const (
	authorityPair     = "ca" // of the API: signs servers, users and nodes
	etcdAuthorityPair = "etcd-ca"
	etcdServerPair    = "etcd"
	etcdClientPair    = "etcd-client"
	apiServerPair     = "apiserver"
	kubeletClientPair = "kubelet-client" // the API server as a client of kubelets
	// The API server as a client of the servers that APIServices name, which trust it to say who
	// asks.
	proxyAuthorityPair = "front-proxy-ca"
	proxyClientPair    = "front-proxy-client"
)

// trust is what the probe of the components needs.
type trust struct{ authority, admin, etcdAuthority, etcdClient pki.Pair }

// prepare fills the folder: keys, certificates, kubeconfigs.
func (l Layout) prepare(a addresses, nodes []string) (trust, error) {
	if err := os.Mkdir(l.pki(), 0o700); err != nil {
		return trust{}, fmt.Errorf("prepare the folder: %w", err)
	}
	authority, err := pki.NewAuthority("kubernetes")
	if err != nil {
		return trust{}, err
	}
	etcdAuthority, err := pki.NewAuthority("etcd")
	if err != nil {
		return trust{}, err
	}
	proxyAuthority, err := pki.NewAuthority("front-proxy")
	if err != nil {
		return trust{}, err
	}
	serviceAccountKey, err := pki.NewKey()
	if err != nil {
		return trust{}, fmt.Errorf("key of service accounts: %w", err)
	}
	files := map[string][]byte{l.serviceAccountKey(): serviceAccountKey}
	pairs := map[string]pki.Pair{authorityPair: authority.Pair, etcdAuthorityPair: etcdAuthority.Pair, proxyAuthorityPair: proxyAuthority.Pair}

	const masters = "system:masters" // may do everything, before there are any roles
	for name, of := range map[string]struct {
		by      *pki.Authority
		subject pki.Subject
	}{
		etcdServerPair: {etcdAuthority, pki.Subject{Name: "etcd", Hosts: []string{"127.0.0.1", "localhost"}}},
		etcdClientPair: {etcdAuthority, pki.Subject{Name: apiServer}},
		apiServerPair: {authority, pki.Subject{Name: apiServer, Hosts: []string{
			"127.0.0.1", "localhost", apiServerService,
			"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
		}}},
		kubeletClientPair: {authority, pki.Subject{Name: "kube-apiserver-kubelet-client", Groups: []string{masters}}},
		proxyClientPair:   {proxyAuthority, pki.Subject{Name: proxyClient}},
	} {
		if pairs[name], err = of.by.Issue(of.subject); err != nil {
			return trust{}, err
		}
	}
	for name, pair := range pairs {
		files[l.cert(name)], files[l.key(name)] = pair.Cert, pair.Key
	}

	clients := map[string]pki.Subject{
		l.Kubeconfig():                  {Name: "kubernetes-admin", Groups: []string{masters}},
		l.kubeconfig(controllerManager): {Name: "system:kube-controller-manager"},
		l.kubeconfig(scheduler):         {Name: "system:kube-scheduler"},
	}
	for _, node := range nodes {
		clients[l.Node(node)] = pki.Subject{Name: "system:node:" + node, Groups: []string{"system:nodes"}}
	}
	t := trust{authority: authority.Pair, etcdAuthority: etcdAuthority.Pair, etcdClient: pairs[etcdClientPair]}
	for file, subject := range clients {
		pair, err := authority.Issue(subject)
		if err != nil {
			return trust{}, err
		}
		if file == l.Kubeconfig() {
			t.admin = pair
		}
		files[file] = kubeconfig.Marshal(local(a.apiServer), authority.Cert, pair)
	}
	for file, content := range files {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			return trust{}, fmt.Errorf("prepare the folder: %w", err)
		}
	}
	return t, nil
}

// claim makes the folder and takes its lock, which the process holds until unlock is called, at the
// latest until it ends.
func (l Layout) claim() (unlock func(), err error) {
	if err := os.MkdirAll(string(l), 0o700); err != nil {
		return nil, fmt.Errorf("make the folder: %w", err)
	}
	found, err := os.ReadDir(string(l))
	if err != nil {
		return nil, fmt.Errorf("look into the folder: %w", err)
	}
	if len(found) > 0 {
		if running, err := l.running(); err != nil || running {
			return nil, errors.Join(err, fmt.Errorf("a control plane is running in %s", l))
		}
		return nil, fmt.Errorf("%s is not empty: name another folder, or remove what an earlier control plane has left there: controlplane down --rm --dir %s", l, l)
	}
	// Whoever creates the file has the folder.
	lock, err := os.OpenFile(l.lock(), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("claim the folder: %w", err)
	}
	if err := flock(lock, lockNow); err != nil {
		return nil, errors.Join(fmt.Errorf("claim the folder: %w", err), lock.Close())
	}
	return func() { _ = lock.Close() }, nil // the kernel takes the lock back whatever it says
}

// running reports whether a process holds the folder.
func (l Layout) running() (bool, error) {
	lock, err := os.OpenFile(l.lock(), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look whether a control plane runs in %s: %w", l, err)
	}
	defer lock.Close()
	switch err := flock(lock, lockNow); {
	case errors.Is(err, errLocked):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("look whether a control plane runs in %s: %w", l, err)
	}
	return false, nil
}

// openLog makes the folder of the logs, and a logger that also writes to the program's own.
func (l Layout) openLog(also slog.Handler) (log *slog.Logger, closeLog func(), err error) {
	if err := os.Mkdir(l.logs(), 0o700); err != nil {
		return nil, nil, fmt.Errorf("prepare the folder: %w", err)
	}
	f, err := os.OpenFile(l.Log("controlplane"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("prepare the folder: %w", err)
	}
	return slog.New(slog.NewMultiHandler(also, slog.NewTextHandler(f, nil))), func() { _ = f.Close() }, nil
}

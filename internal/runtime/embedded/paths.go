package embedded

import (
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
)

// paths are the runtime's files and directories.
type paths struct {
	root, run string

	bundles string
	// current is the stable link to the bundle in use; shims use paths below it while their
	// containers exist.
	current string
	store   storePaths

	settings  string
	config    string
	log       string
	imageList string
	// registries are the directories of registry configurations in containerd's configuration, in
	// order: one directory per registry, named after it, with a hosts.toml. The first is below
	// root.
	registries []string
	network    networkPaths

	state       string // containerd's
	runc        string
	namespaces  string // network namespaces of pods
	podshims    string // one directory per pod
	shimSockets string
	socket      string
	ttrpcSocket string
	record      string
}

// storePaths are containerd's persistent store, and what is retained of a damaged one.
type storePaths struct {
	dir      string
	metadata string        // the main database
	content  string        // the content store
	blobs    contentFolder // image content in it, by hash
	corrupt  string        // broken databases, which are retained for inspection
	recovery string        // the last recovery report
	// salvage is the directory of image content during a reset. It is below containerd's own
	// directory, which may be a separate file system.
	salvage        string
	salvagedImages string // the list of the images in it
}

// networkPaths are the files of the pod network, and the names of its bridges.
type networkPaths struct {
	file     string // the persisted network
	configs  string // the directory of CNI configurations that containerd watches
	conflist string // the configuration of the bridge in it
	// leases is host-local's directory of leases; pod addresses do not survive a reboot, so neither
	// do the leases.
	leases string
	// bridge is the name of the pod network and of its first bridge, derived from the root
	// directory, so that agents with different roots use different bridges. Interface names have at
	// most 15 bytes.
	bridge string
	// bridges are the possible names of the pod bridge: a new range gets another bridge while pods
	// use the previous one.
	bridges []string
}

// BridgePrefix is the name prefix of pod bridges.
const BridgePrefix = "berth"

// newPaths returns the paths below a root directory and a run directory.
func newPaths(root, run string) paths {
	store := filepath.Join(root, "containerd")
	settings := filepath.Join(root, "runtime")
	configs := filepath.Join(settings, "cni")
	state := filepath.Join(run, "containerd")
	socket := filepath.Join(run, "containerd.sock")
	bundles := filepath.Join(root, "bundle")
	sum := sha256.Sum256([]byte(root))
	bridge := BridgePrefix + hex.EncodeToString(sum[:4])
	return paths{
		root: root, run: run,
		bundles: bundles, current: filepath.Join(bundles, "current"),
		store: storePaths{
			dir: store, metadata: store + "/io.containerd.metadata.v1.bolt/meta.db",
			content: store + "/io.containerd.content.v1.content", blobs: contentFolder(store + "/io.containerd.content.v1.content/blobs/sha256"),
			corrupt: store + ".corrupt", recovery: store + ".corrupt/recovery.json",
			salvage: store + "/berth.salvage", salvagedImages: store + "/berth.salvage/images.json",
		},
		settings: settings, config: filepath.Join(settings, "containerd.toml"), log: filepath.Join(settings, "containerd.log"),
		imageList:  settings + "/images.json",
		registries: []string{filepath.Join(root, "registries"), "/etc/containerd/certs.d", "/etc/docker/certs.d"},
		network: networkPaths{
			file: filepath.Join(settings, "network.json"), configs: configs, conflist: filepath.Join(configs, "10-berth.conflist"),
			leases: filepath.Join(run, "addresses"), bridge: bridge, bridges: []string{bridge, bridge + "-2", bridge + "-3"},
		},
		state: state, runc: filepath.Join(run, "runc"), namespaces: state + "/io.containerd.grpc.v1.cri/netns",
		podshims: state + "/keepers", shimSockets: filepath.Join(run, "s"),
		socket: socket, ttrpcSocket: socket + ".ttrpc", record: filepath.Join(run, "containerd.json"),
	}
}

// shimSocket is the socket of a sandbox's shim (containerd's pkg/shim, CreateSocketAddress).
func shimSocket(p paths, id string) string {
	sum := sha256.Sum256([]byte(filepath.Join(p.socket, podNamespace, id)))
	return filepath.Join(p.shimSockets, hex.EncodeToString(sum[:]))
}

// EndpointIn returns the Endpoint of the runtime with a run directory.
func EndpointIn(runDir string) string { return "unix://" + newPaths("", runDir).socket }

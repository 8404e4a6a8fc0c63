package agent

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/rest"

	"berth/internal/cluster/certs"
	"berth/internal/cluster/kube"
	"berth/internal/cluster/node"
	"berth/internal/cluster/offlinecache"
	"berth/internal/config"
	"berth/internal/host/cgroups"
	"berth/internal/pod"
	"berth/internal/record/events"
	"berth/internal/record/journal"
)

// apiServer is the API server of a cluster, or the one within the agent.
type apiServer struct {
	client *kube.Client
	// local is the API server within the agent; nil with a cluster's.
	local *localAPI
	// known identifies the server and its certificate authorities.
	known string
	// offline is the offline cache, for a start without the server.
	offline  *offlinecache.Cache
	identity *certs.Client  // nil if the kubeconfig has the credentials
	sender   *events.Sender // nil if events are not sent to the server
	// current is the Node as in the API server.
	current *node.Current
	// static gets the names of static and mirror pods that were added, changed or deleted.
	static     *pod.Inbox[pod.FullName]
	csiDrivers *kube.Watch[*storagev1.CSIDriver]
	// driversChanged has an element when the CSIDrivers in the API server changed.
	driversChanged chan struct{} // capacity 1
}

// openAPI connects to the API server.
func openAPI(b *base) (s apiServer, err error) {
	if b.cfg.Kubelet != nil {
		if err := checkHost(b.cfg.Kubelet); err != nil {
			return s, err
		}
	}
	rc := b.out.REST
	switch {
	case b.settings.mode != memberMode:
		s.local = newLocalAPI(b)
		rc = s.local.rest()
	case rc == nil:
		if rc, err = s.openIdentity(b); err != nil {
			return s, err
		}
	}
	k := b.member
	open := kube.Config{
		REST: rc, Version: b.cfg.Version, ContentType: k.ContentType, Metrics: b.out.Metrics, Log: b.cfg.Log,
		Limits: kube.Limits{QPS: float32(*k.KubeAPIQPS), Burst: int(k.KubeAPIBurst)},
	}
	if s.identity != nil {
		open.Certificate = s.identity.Rotation
	}
	if s.client, err = kube.Open(open); err != nil {
		return s, err
	}
	if s.known, err = nameServer(rc); err != nil {
		return s, err
	}
	if !s.isPrivate() {
		eventClient, err := s.client.With(kube.Limits{QPS: float32(*k.EventRecordQPS), Burst: int(k.EventBurst)})
		if err != nil {
			return s, err
		}
		s.sender = events.NewSender(eventClient, "kubelet", b.cfg.NodeName, b.cfg.Log)
	}
	s.current = node.NewCurrent()
	s.static = pod.NewInbox[pod.FullName]()
	s.driversChanged = make(chan struct{}, 1)
	s.csiDrivers = kube.NewWatch[*storagev1.CSIDriver](s.client, kube.Selector{}, func() { wake(s.driversChanged) })
	return s, nil
}

// nameServer returns the server's address with the digest of its certificate authorities, so that
// cache entries of another cluster are not used.
func nameServer(rc *rest.Config) (string, error) {
	authorities := rc.CAData
	if len(authorities) == 0 && rc.CAFile != "" {
		var err error
		if authorities, err = os.ReadFile(rc.CAFile); err != nil {
			return "", fmt.Errorf("authorities of the API server: %w", err)
		}
	}
	return fmt.Sprintf("%s %x", rc.Host, sha256.Sum256(authorities)), nil
}

// newOfflineCache creates the offline cache of the API server's objects.
func newOfflineCache(b *base, s *apiServer, j *journal.Journal) (*offlinecache.Cache, error) {
	return offlinecache.New(offlinecache.Config{
		Dir: b.cfg.inRoot(offlineCacheDir), Objects: b.member.KeepObjects, Node: b.cfg.NodeName, Server: s.known,
		Reached: s.client.Health, Journal: j, Log: b.cfg.Log,
	})
}

// offlineCacheDir is the directory of the offline cache, below the root directory.
const offlineCacheDir = "kept"

// objects returns the API for reading the objects that pods refer to.
func (s *apiServer) objects(node string) offlinecache.API {
	return offlinecache.API{PodObjects: kube.PodObjects{Client: s.client, Node: node}, Cache: s.offline}
}

// allocatablePeriod returns how often the driver's volume limit is updated in the cluster, 0 for
// never.
func (s *apiServer) allocatablePeriod(driver string) time.Duration {
	d, ok := s.csiDrivers.Get("", driver)
	if !ok || d.Spec.NodeAllocatableUpdatePeriodSeconds == nil {
		return 0
	}
	return time.Duration(*d.Spec.NodeAllocatableUpdatePeriodSeconds) * time.Second
}

func wakeEach(wakes ...func()) func() {
	return func() {
		for _, w := range wakes {
			w()
		}
	}
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// checkHost rejects hosts that the configuration forbids.
func checkHost(k *config.Kubelet) error {
	version, _ := cgroups.Detect()
	content, _ := os.ReadFile(swapsFile) // a machine without the file has no swap
	return unfitFor(k, version, content)
}

// unfitFor returns why a host with this cgroup version (0 for unknown) and swapsFile does not meet
// the configuration.
func unfitFor(k *config.Kubelet, version int, swapsFile []byte) error {
	var errs []error
	if version == 1 && *k.FailCgroupV1 {
		errs = append(errs, errors.New("this host has cgroup v1: boot it with cgroup v2, or set failCgroupV1: false"))
	}
	if *k.FailSwapOn && swaps(swapsFile) {
		errs = append(errs, errors.New("swap is on: turn it off, or set failSwapOn: false"))
	}
	if version == 1 && k.MemorySwap.SwapBehavior == "LimitedSwap" {
		errs = append(errs, errors.New("memorySwap.swapBehavior LimitedSwap needs cgroup v2, and this host has v1: set it to NoSwap"))
	}
	return errors.Join(errs...)
}

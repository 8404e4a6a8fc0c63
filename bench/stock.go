package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/host/cgroupstat"
)

// Floors are measured with two pod networks: the bundle's plugin, and the reference plugins.
const (
	ownFloor   = "floor"
	stockFloor = "stock floor"
)

// network is the configuration of the pod network: the file that containerd reads, and its content.
type network struct {
	file string
	own  []byte
}

// readNetwork reads the agent's network configuration.
func (m *machine) readNetwork() (n network, err error) {
	n.file = filepath.Join(m.rootDir(), "runtime/cni/10-berth.conflist")
	n.own, err = os.ReadFile(n.file)
	return n, err
}

// stock returns the same network with the reference plugins, as Berth configured them before it had
// its own plugin. It returns nil if the network already uses them, because the host has no
// nftables.
func (n network) stock() ([]byte, error) {
	var list struct {
		CNIVersion string `json:"cniVersion"`
		Name       string `json:"name"`
		Plugins    []struct {
			Type    string `json:"type"`
			Bridge  string `json:"bridge"`
			IPMasq  bool   `json:"ipMasq"`
			DataDir string `json:"dataDir"`
			Ranges  any    `json:"ranges"`
		} `json:"plugins"`
	}
	if err := json.Unmarshal(n.own, &list); err != nil {
		return nil, fmt.Errorf("%s: %w", n.file, err)
	}
	if len(list.Plugins) != 1 || list.Plugins[0].Type != "berth-cni" {
		return nil, nil
	}
	own := list.Plugins[0]
	return json.MarshalIndent(map[string]any{
		"cniVersion": list.CNIVersion, "name": list.Name,
		"plugins": []any{
			map[string]any{
				"type": "bridge", "bridge": own.Bridge, "isDefaultGateway": true, "ipMasq": own.IPMasq, "ipMasqBackend": "nftables", "hairpinMode": true,
				"ipam": map[string]any{"type": "host-local", "dataDir": own.DataDir, "ranges": own.Ranges},
			},
			map[string]any{"type": "portmap", "capabilities": map[string]bool{"portMappings": true}, "backend": "nftables"},
			map[string]any{"type": "bandwidth", "capabilities": map[string]bool{"bandwidth": true}},
		},
	}, "", "  ")
}

// use switches containerd to a network configuration, and waits until it is active. There must be
// no pods.
func (m *machine) use(ctx context.Context, n network, content []byte, plugin string) error {
	if err := os.WriteFile(n.file+".new", content, 0o644); err != nil {
		return err
	}
	if err := os.Rename(n.file+".new", n.file); err != nil {
		return err
	}
	return until(ctx, 30*time.Second, 50*time.Millisecond, "the runtime to use "+plugin, func() bool {
		s, err := m.runtime.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
		return err == nil && strings.Contains(s.Info["cniconfig"], `"`+plugin+`"`) && !strings.Contains(s.Info["lastCNILoadStatus"], "rror")
	})
}

// measureFloors measures the runtime itself with both networks, alternating where short-term
// variation matters.
func measureFloors(ctx context.Context, m *machine, r *report) (err error) {
	n, err := m.readNetwork()
	if err != nil {
		return err
	}
	stock, err := n.stock()
	if err != nil {
		return err
	}
	if stock == nil {
		return measureFloor(ctx, m, r, ownFloor)
	}
	inStock := func(measure func() error) error {
		return errors.Join(m.use(ctx, n, stock, "host-local"), measure(), m.use(ctx, n, n.own, "berth-cni"))
	}
	if err := inStock(func() error { return measureFloor(ctx, m, r, stockFloor) }); err != nil {
		return err
	}
	if err := measureFloor(ctx, m, r, ownFloor); err != nil {
		return err
	}
	return inStock(func() error { return measureFloorBatch(ctx, m, r, stockFloor, r.options.pods, ratioParallel) })
}

// cpu returns the CPU time of the runtime, its shims and plugins, and all pods.
func (m *machine) cpu() (time.Duration, error) {
	h, err := cgroupstat.Detect()
	if err != nil {
		return 0, err
	}
	var all time.Duration
	for _, cgroup := range []string{m.cgroup, m.runtimeCgroup()} {
		g := h.Open(cgroup)
		s, err := g.Read()
		g.Close()
		if err != nil && !cgroupstat.IsGone(err) {
			return 0, fmt.Errorf("cgroup %s: %w", cgroup, err)
		}
		if s.CPU != nil {
			all += time.Duration(s.CPU.Usage)
		}
	}
	return all, nil
}

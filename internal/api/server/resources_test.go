package server_test

import (
	"testing"

	"berth/internal/api/server"
	"berth/internal/resources/containermanager"
	"berth/internal/resources/devicemanager"
	"berth/internal/resources/memorymanager"
)

func TestResources(t *testing.T) {
	h := newNode().handlers()
	if got := serve(t, h).get(server.PathResources); got.Status != 404 {
		t.Errorf("of an agent that shares nothing out: %+v", got)
	}
	var s containermanager.Snapshot
	h.Resources = func() containermanager.Snapshot { return s }
	a := serve(t, h)
	if got, want := a.get(server.PathResources), (answer{200, "{}\n"}); got != want {
		t.Errorf("nothing: %+v, want %+v", got, want)
	}
	s = containermanager.Snapshot{
		CPUs:      &containermanager.CPUs{Reserved: "0", Shared: "0-1", Free: "1"},
		Memory:    []memorymanager.NodeMemory{{Node: 0, Type: "memory", Allocatable: 8, Free: 4}},
		Resources: []devicemanager.Resource{{Name: "example.com/gpu", Devices: 2, Healthy: 2, Given: 1, Free: 1, Plugin: "/gpu.sock"}},
		Drivers:   []string{"gpu.example.com"},
		Containers: []containermanager.Holding{{
			Namespace: "default", Pod: "web", UID: "u", Container: "main", CPUs: "2-3",
			Memory:  []memorymanager.Block{{NUMAAffinity: []int{0}, Type: "memory", Size: 4}},
			Devices: []devicemanager.Device{{Resource: "example.com/gpu", ID: "gpu-0", Nodes: []int64{0}}},
			Claims:  []containermanager.Claim{{Name: "card", Devices: []string{"gpu.example.com/pool/card-7"}}},
		}},
	}
	want := answer{200, `{"cpus":{"reserved":"0","shared":"0-1","free":"1"},"memory":[{"node":0,"type":"memory","allocatable":8,"free":4}],` +
		`"resources":[{"name":"example.com/gpu","devices":2,"healthy":2,"given":1,"free":1,"plugin":"/gpu.sock"}],"drivers":["gpu.example.com"],` +
		`"containers":[{"namespace":"default","pod":"web","uid":"u","container":"main","cpus":"2-3","memory":[{"numaAffinity":[0],"type":"memory","size":4}],` +
		`"devices":[{"resource":"example.com/gpu","id":"gpu-0","nodes":[0]}],"claims":[{"name":"card","devices":["gpu.example.com/pool/card-7"]}]}]}` + "\n"}
	if got := a.get(server.PathResources); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := a.ask("POST", server.PathResources, nil); got.Status != 405 {
		t.Errorf("a POST: %+v", got)
	}
}

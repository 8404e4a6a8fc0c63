package agenttest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"google.golang.org/grpc/codes"

	"berth/internal/pod"
	"berth/internal/resources/machine/machinetest"
	"berth/internal/storage/csi/csitest"
)

// doDriver runs the scenario commands about CSI drivers, crashes of the agent and the topology of
// the machine:
//
//	csi-driver NAME            add a CSI driver, and restart the agent, which finds it
//	csi hangs METHOD           the driver does not answer the next call of METHOD
//	crash POD                  the agent panics while it syncs the pod, and restarts
//	local-api FILE…            an agent with a local API replaces the agent, and finds the objects,
//	                           created one second apart
//	nodes N                    the number of NUMA nodes for agents that start from now on, each with
//	                           two cores of one thread and 4 GiB
func (s *story) doDriver(verb string, args []string) error {
	switch {
	case verb == "csi-driver":
		s.StopAgent()
		s.AddDriver(args[0])
		s.StartAgent()
	case verb == "csi" && s.driver == nil:
		return errors.New("there is no CSI driver")
	case verb == "csi" && len(args) == 2 && args[0] == "hangs":
		return csitest.Break(s.driver.Dir, args[1], csitest.Hang, codes.OK)
	case verb == "crash":
		for _, p := range s.Agent.Handlers().Pods.List() {
			if p.Name == args[0] {
				return s.Crash(p.UID)
			}
		}
		return errors.New("no such pod")
	case verb == "nodes":
		n, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		s.shape = machinetest.Shape{Sockets: n, Cores: 2, Memory: 4 << 30}
	case verb == "local-api":
		return s.openLocalAPI(args)
	default:
		return s.doMounts(verb, args)
	}
	return nil
}

// Crash makes the agent panic while it syncs the pods, and starts the next one.
func (w *World) Crash(inHand ...pod.UID) error {
	w.StopAgent()
	var slots []byte
	for _, uid := range inHand {
		slot := make([]byte, 128)
		slot[0] = byte(len(uid))
		binary.LittleEndian.PutUint64(slot[1:], 0)
		copy(slot[9:], uid)
		slots = append(slots, slot...)
	}
	for name, content := range map[string][]byte{"inhand": slots, "crash": []byte("panic: an unlucky pod\n\ngoroutine 1 [running]:\n")} {
		if err := os.WriteFile(filepath.Join(w.Root(), "journal", name), content, 0o600); err != nil {
			return fmt.Errorf("crash: %w", err)
		}
	}
	w.StartAgent()
	return nil
}

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

// doDriver carries out the commands of stories that are about CSI drivers, crashes of the agent and
// the shape of the machine:
//
//	csi-driver NAME            a CSI driver comes; the agent starts again and finds it
//	csi hangs METHOD           the driver's next call of METHOD is not answered
//	crash POD                  the agent dies of a panic with the pod in hand, and starts again
//	local-api FILE…            an agent with the Kubernetes API of the machine takes the agent's place, and finds the objects there, made a
//	                           second one after the other
//	nodes N                    the machine has so many NUMA nodes, each with two cores of one thread and 4 GiB; agents that start from now on find it so
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
		for _, p := range s.Agent.Handlers().Pods() {
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

// Crash has the agent die of a panic with the pods in hand, and the next one start.
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

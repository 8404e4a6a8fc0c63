package agenttest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	mount "k8s.io/mount-utils"
)

// doKept runs the scenario commands about reboots of the machine, and about the agent's offline
// cache:
//
//	machine off                the agent, all containers and all mounts end; agent start boots the
//	                           machine
//	keep-objects WHAT          the flag of agents that start from now on
//	expect-kept FOLDER N       the number of files in the directory of the cache
//	expect-kept-without TEXT   no file of the cache contains the text
//	spoil-kept FOLDER          truncate every file in the directory to half its size
func (s *story) doKept(verb string, args []string) error {
	if len(args) == 0 {
		return errors.New("the command needs to know what it is about")
	}
	switch verb {
	case "machine":
		return s.TurnOff()
	case "keep-objects":
		s.Flags = map[string]string{"keep-objects": args[0]}
	case "expect-kept":
		files, err := s.keptFiles(args[0])
		if err != nil {
			return err
		}
		return differs(fmt.Sprint(len(files)), strings.Join(args[1:], " "))
	case "expect-kept-without":
		files, err := s.keptFiles(".")
		for _, f := range files {
			b, readErr := os.ReadFile(f)
			err = errors.Join(err, readErr)
			if strings.Contains(string(b), strings.Join(args, " ")) {
				err = errors.Join(err, fmt.Errorf("%s: %s", f, b))
			}
		}
		return err
	case "spoil-kept":
		files, err := s.keptFiles(args[0])
		for _, f := range files {
			st, statErr := os.Stat(f)
			if err = errors.Join(err, statErr); err == nil {
				err = os.Truncate(f, st.Size()/2)
			}
		}
		return err
	default:
		return s.doDriver(verb, args)
	}
	return nil
}

// keptFiles returns the files below a directory of the offline cache.
func (w *World) keptFiles(folder string) (files []string, err error) {
	err = filepath.WalkDir(filepath.Join(w.dir, "root", "kept", folder), func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && !d.IsDir() {
			files = append(files, path)
		}
		return err
	})
	return files, err
}

// TurnOff turns the machine off: the agent stops, and all containers and mounts end. The next agent
// finds a booted machine.
func (w *World) TurnOff() error {
	w.StopAgent()
	var errs []error
	for _, c := range w.Runtime.Containers() {
		if c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			errs = append(errs, w.Runtime.Kill(c.ID, 255))
		}
	}
	for _, sb := range w.Runtime.Sandboxes() {
		if sb.Ready {
			errs = append(errs, w.Runtime.KillSandbox(sb.ID))
		}
	}
	w.mounts.MountPoints = []mount.MountPoint{}
	return errors.Join(errs...)
}

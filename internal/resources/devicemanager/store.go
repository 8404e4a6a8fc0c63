package devicemanager

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	statefile "berth/internal/checkpoint"
	"berth/internal/health"
	"berth/internal/resources/devicemanager/checkpoint"
)

// FileName is the name of the checkpoint of device allocations in the device plugin directory.
const FileName = "kubelet_internal_checkpoint"

type store struct {
	dir         string
	log         *slog.Logger
	allocations *allocations
	changed     chan struct{} // capacity 1: wakes tend
	writeLock   chan struct{} // capacity 1: the holder of the token writes the file
	writing     health.Latch  // why the file cannot be written
	written     uint64        // the generation in the file; guarded by allocations.mu
	fresh       bool          // there was no readable file; guarded by allocations.mu
}

func (s *store) file() string { return filepath.Join(s.dir, FileName) }

// saveSoon wakes tend. It does not block.
func (s *store) saveSoon() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// saveOrRetry writes the checkpoint, and schedules a retry if that fails.
func (s *store) saveOrRetry() {
	if s.save() != nil {
		s.saveSoon()
	}
}

// Load reads the checkpoint. It must be called before any other method. Plugins of an earlier agent
// count as stopped from now until they register again. If the checkpoint cannot be read, Load sets
// it aside and returns an error that reports this; the manager is usable without it.
func (m *Manager) Load() error { return m.store.load() }

func (s *store) load() error {
	_, err := os.Lstat(s.file())
	fresh := errors.Is(err, fs.ErrNotExist)
	var data checkpoint.Data
	err = statefile.Read(s.file(), "allocations of devices", func(content []byte) (err error) {
		data, err = checkpoint.Decode(content)
		return err
	})
	a := s.allocations
	a.mu.Lock()
	defer a.mu.Unlock()
	s.fresh = fresh || err != nil
	a.pods = restore(data.PodDeviceEntries)
	for name := range data.RegisteredDevices {
		if isExtended(name) && len(a.resources) < maxResources {
			a.resources[name] = &resource{stopped: time.Now(), devices: map[string]device{}}
		}
	}
	for resource, ids := range a.pods.contested() {
		s.log.Warn("several pods have the same devices, which was so before this agent began", "resource", resource, "devices", list(ids))
	}
	a.generation++ // so that the next save writes the file
	return err
}

// BeganWithoutFile reports whether Load found no readable checkpoint. An existing Node may then
// have stale amounts of extended resources.
func (m *Manager) BeganWithoutFile() bool {
	m.allocations.mu.Lock()
	defer m.allocations.mu.Unlock()
	return m.store.fresh
}

// save writes the checkpoint durably, if it is out of date.
func (s *store) save() error {
	s.writeLock <- struct{}{}
	defer func() { <-s.writeLock }()
	s.allocations.mu.Lock()
	generation := s.allocations.generation
	if generation == s.written {
		s.allocations.mu.Unlock()
		return nil // the previous holder of the token wrote it
	}
	data := s.allocations.data()
	s.allocations.mu.Unlock()
	content, err := checkpoint.Encode(data)
	if err == nil {
		err = makeFolder(s.dir)
	}
	if err == nil {
		err = statefile.Write(s.file(), 0o600, content)
	}
	s.writing.Set(err)
	if err != nil {
		return err
	}
	s.allocations.mu.Lock()
	s.written = generation
	s.allocations.mu.Unlock()
	return nil
}

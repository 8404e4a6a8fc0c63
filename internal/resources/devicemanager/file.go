package devicemanager

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	keep "berth/internal/checkpoint"
	"berth/internal/resources/devicemanager/checkpoint"
)

// FileName is the name of the checkpoint of device allocations in the device plugin directory.
const FileName = "kubelet_internal_checkpoint"

func (m *Manager) file() string { return filepath.Join(m.Dir, FileName) }

// Load reads the checkpoint. It must be called before any other method. Plugins of an earlier agent
// count as stopped from now until they register again. If the checkpoint cannot be read, Load sets
// it aside and returns an error that reports this; the manager is usable without it.
func (m *Manager) Load() error {
	_, err := os.Lstat(m.file())
	fresh := errors.Is(err, fs.ErrNotExist)
	var data checkpoint.Data
	err = keep.Read(m.file(), "allocations of devices", func(content []byte) (err error) {
		data, err = checkpoint.Decode(content)
		return err
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fresh = fresh || err != nil
	m.pods = restore(data.PodDeviceEntries)
	for name := range data.RegisteredDevices {
		if isExtended(name) && len(m.resources) < maxResources {
			m.resources[name] = &resource{stopped: time.Now(), devices: map[string]device{}}
		}
	}
	for resource, ids := range m.pods.contested() {
		m.Log.Warn("several pods have the same devices, which was so before this agent began", "resource", resource, "devices", list(ids))
	}
	m.generation++ // so that the next save writes the file
	return err
}

// BeganWithoutFile reports whether Load found no readable checkpoint. An existing Node may then
// have stale amounts of extended resources.
func (m *Manager) BeganWithoutFile() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fresh
}

// save writes the checkpoint durably, if it is out of date.
func (m *Manager) save() error {
	m.writeLock <- struct{}{}
	defer func() { <-m.writeLock }()
	m.mu.Lock()
	generation := m.generation
	if generation == m.written {
		m.mu.Unlock()
		return nil // the previous holder of the token wrote it
	}
	data := m.data()
	m.mu.Unlock()
	content, err := checkpoint.Encode(data)
	if err == nil {
		err = makeFolder(m.Dir)
	}
	if err == nil {
		err = keep.Write(m.file(), 0o600, content)
	}
	m.writing.Set(err)
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.written = generation
	m.mu.Unlock()
	return nil
}

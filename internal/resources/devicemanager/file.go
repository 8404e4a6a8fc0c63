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

// FileName is the name of the file in the folder of device plugins that says who has what.
const FileName = "kubelet_internal_checkpoint"

func (m *Manager) file() string { return filepath.Join(m.Dir, FileName) }

// Load reads who had which devices. It must be called before anything is asked. Plugins that an
// earlier agent knew count as stopped now, until they register again. A file that cannot be read is
// set aside, and is the error, which says so: the agent goes on without it.
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
	m.generation++ // so that the file is there once something has happened
	return err
}

// BeganWithoutFile reports whether an earlier agent left no file that Load could read. Then a Node
// that is there already has amounts of extended resources that nobody answers for.
func (m *Manager) BeganWithoutFile() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fresh
}

// save makes the file say what is so now, durably.
func (m *Manager) save() error {
	m.writeLock <- struct{}{}
	defer func() { <-m.writeLock }()
	m.mu.Lock()
	generation := m.generation
	if generation == m.written {
		m.mu.Unlock()
		return nil // who held the token before has written it
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

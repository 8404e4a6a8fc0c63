package embedded

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Beside its databases containerd has small files, and so has the pods' network. With one that is
// damaged some calls fail for ever: such a file is removed before containerd starts, which makes
// another one, or takes what it is of for ended.

// stateFiles are these files, by patterns below containerd's folders, and what is wrong with their
// content.
func (p paths) stateFiles() map[string]func([]byte) error {
	isJSON := func(b []byte) error {
		if !json.Valid(b) {
			return errors.New("it is not JSON")
		}
		return nil
	}
	return map[string]func([]byte) error{
		p.home() + "/io.containerd.grpc.v1.introspection/uuid": func(b []byte) error {
			if !uuidText.Match(b) {
				return errors.New("it is not a UUID")
			}
			return nil
		},
		p.home() + "/io.containerd.grpc.v1.cri/containers/*/status": isJSON,
		p.state() + taskDir + "/*/bootstrap.json":                   isJSON,
		// A lease itself stays, whatever is in it: the address may be in use.
		p.addresses() + "/*/last_reserved_ip.*": func(b []byte) error {
			_, err := netip.ParseAddr(strings.TrimSpace(string(b)))
			return err
		},
	}
}

var uuidText = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\s*$`)

// removeDamagedState removes damaged files. containerd does not run.
func (r *Runtime) removeDamagedState() error {
	for pattern, check := range r.paths.stateFiles() {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		for _, file := range files {
			b, err := os.ReadFile(file)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err == nil {
				err = check(b)
			}
			if err == nil {
				continue
			}
			r.log.Warn("A file of containerd is damaged, and is removed", "file", file, "err", err)
			if err := os.RemoveAll(file); err != nil {
				return fmt.Errorf("remove a damaged file: %w", err)
			}
		}
	}
	return nil
}

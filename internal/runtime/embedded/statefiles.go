package embedded

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"berth/internal/checkpoint"
)

// Besides its databases, containerd has small state files, and so has the pod network. A damaged
// one makes some calls fail permanently: it is removed before containerd starts, which then
// recreates it, or treats its object as terminated.

// stateFiles returns glob patterns of these files, with their validation functions.
func stateFiles(p paths) map[string]func([]byte) error {
	isJSON := func(b []byte) error {
		if !json.Valid(b) {
			return errors.New("it is not JSON")
		}
		return nil
	}
	return map[string]func([]byte) error{
		p.store.dir + "/io.containerd.grpc.v1.introspection/uuid": func(b []byte) error {
			if !uuidText.Match(b) {
				return errors.New("it is not a UUID")
			}
			return nil
		},
		p.store.dir + "/io.containerd.grpc.v1.cri/containers/*/status": isJSON,
		p.state + taskDir + "/*/bootstrap.json":                        isJSON,
		p.network.leases + "/*/last_reserved_ip.*": func(b []byte) error {
			_, err := netip.ParseAddr(strings.TrimSpace(string(b)))
			return err
		},
		p.network.leases + "/*/lock": func([]byte) error { return nil }, // it has no content; a directory is no lock
	}
}

var uuidText = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\s*$`)

// removeDamagedState removes damaged files. containerd must not be running.
func removeDamagedState(p paths, log *slog.Logger) error {
	for pattern, check := range stateFiles(p) {
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
			log.Warn("A file of containerd is damaged, and is removed", "file", file, "err", err)
			if err := os.RemoveAll(file); err != nil {
				return fmt.Errorf("remove a damaged file: %w", err)
			}
		}
	}
	return restoreLeases(p, log)
}

// killDamagedContainers kills runc's containers and sandboxes with an unusable file: runc could not
// kill them, or start another container in their pod. containerd must not be running; it finds them
// terminated.
func killDamagedContainers(ctx context.Context, p paths, log *slog.Logger) error {
	report := func(file string, err error) {
		log.Warn("A file of a container is damaged: the container is ended, and its pod started again", "file", file, "err", err)
	}
	states, err := filepath.Glob(filepath.Join(p.runc, podNamespace, "*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range states {
		if err := damagedState(dir); err != nil {
			report(filepath.Join(dir, "state.json"), err)
			errs = append(errs, deleteContainers(ctx, p, []string{dir}))
		}
	}
	for _, name := range podFiles {
		files, err := filepath.Glob(filepath.Join(p.store.dir+sandboxDir, "*", name))
		errs = append(errs, err)
		for _, file := range files {
			if err := checkPodFile(file); err != nil {
				report(file, err)
				errs = append(errs, killContainer(ctx, filepath.Base(filepath.Dir(file))))
			}
		}
	}
	return errors.Join(errs...)
}

// restoreLeases restores the content of damaged IP leases. Otherwise an unused address would be
// leased forever, or a used one be assigned to another pod.
func restoreLeases(p paths, log *slog.Logger) error {
	bridge := p.network.bridge
	attachments, err := filepath.Glob(filepath.Join(attachmentsDir, bridge+"-*"))
	if err != nil {
		return err
	}
	owners := map[string][]byte{} // content of attachments, by name
	for _, file := range attachments {
		b, _ := os.ReadFile(file) // the name alone is useful, too
		owners[strings.TrimPrefix(filepath.Base(file), bridge+"-")] = b
	}
	var leases []string
	err = eachEntry(filepath.Join(p.network.leases, bridge), func(path string) {
		if _, err := netip.ParseAddr(filepath.Base(path)); err == nil {
			leases = append(leases, path)
		}
	})
	for _, path := range leases {
		id, ifName := lessee(path)
		if _, known := owners[id+"-"+ifName]; known {
			continue
		}
		owner := lesseeByAttachments(owners, filepath.Base(path), id)
		if owner == "" && isID(id) && ifName != "" {
			continue // of a pod whose network was being created: it is torn down as an orphan
		}
		log.Warn("The lease of an address is damaged, rewriting it if the address is in use", "file", path)
		err = errors.Join(err, os.RemoveAll(path))
		if id, ifName, found := strings.Cut(owner, "-"); found {
			err = errors.Join(err, os.WriteFile(path, []byte(id+"\r\n"+ifName), 0o600))
		}
	}
	return err
}

// lesseeByAttachments returns the name of the attachment with an address, "" if unknown: one whose
// content has it, or else one of the lease's sandbox.
func lesseeByAttachments(owners map[string][]byte, address, sandbox string) (owner string) {
	for name, b := range owners {
		id, _, _ := strings.Cut(name, "-")
		switch {
		case !isID(id):
		case hasAddress(b, address):
			return name
		case id == sandbox:
			owner = name
		}
	}
	return owner
}

// hasAddress reports whether an attachment has an address, also if its JSON is damaged. A plain
// text search of valid JSON would match the pod's annotations, which can contain any address.
func hasAddress(content []byte, address string) bool {
	var a struct {
		Result struct {
			IPs []struct{ Address string }
		}
	}
	if json.Unmarshal(content, &a) != nil {
		return bytes.Contains(content, []byte(`"`+address+`/`))
	}
	return slices.ContainsFunc(a.Result.IPs, func(ip struct{ Address string }) bool { return strings.HasPrefix(ip.Address, address+"/") })
}

// setAsideFolders renames directories that are in the places of our files.
func setAsideFolders(p paths, log *slog.Logger) error {
	for _, file := range []string{
		p.config, p.network.conflist, p.network.file, p.log, p.log + ".1", p.log + ".next", p.record, p.imageList,
		p.current, p.current + ".next", p.socket, p.ttrpcSocket,
	} {
		if fi, err := os.Lstat(file); err != nil || !fi.IsDir() {
			continue
		}
		aside, err := checkpoint.SetAside(file)
		if err != nil {
			return err
		}
		log.Warn("A folder is in the place of a file of the runtime, and is set aside", "file", file, "kept", aside)
	}
	return nil
}

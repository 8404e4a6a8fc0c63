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
		p.addresses() + "/*/last_reserved_ip.*": func(b []byte) error {
			_, err := netip.ParseAddr(strings.TrimSpace(string(b)))
			return err
		},
		p.addresses() + "/*/lock": func([]byte) error { return nil }, // it has none; a folder is no lock
	}
}

var uuidText = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\s*$`)

// removeDamagedState removes damaged files. containerd does not run.
func removeDamagedState(p paths, log *slog.Logger) error {
	for pattern, check := range p.stateFiles() {
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

// endDamagedContainers ends containers and sandboxes of runc of which a file cannot be used: runc
// could not end them, or start another container in their pod. containerd does not run, and finds
// them ended.
func endDamagedContainers(ctx context.Context, p paths, log *slog.Logger) error {
	report := func(file string, err error) {
		log.Warn("A file of a container is damaged: the container is ended, and its pod started again", "file", file, "err", err)
	}
	states, err := filepath.Glob(filepath.Join(p.runc(), podNamespace, "*"))
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
		files, err := filepath.Glob(filepath.Join(p.home()+sandboxDir, "*", name))
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

// restoreLeases gives the leases of addresses that are damaged the content that they had. Without
// it an address that nothing uses any more would be taken for ever, or one that is in use be given
// to another pod.
func restoreLeases(p paths, log *slog.Logger) error {
	bridge := p.bridge()
	attachments, err := filepath.Glob(filepath.Join(attachmentsDir, bridge+"-*"))
	if err != nil {
		return err
	}
	owners := map[string][]byte{} // what is known of attachments, by their names
	for _, file := range attachments {
		b, _ := os.ReadFile(file) // without its content the name tells something
		owners[strings.TrimPrefix(filepath.Base(file), bridge+"-")] = b
	}
	var leases []string
	err = eachEntry(filepath.Join(p.addresses(), bridge), func(path string) {
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
			continue // of a pod whose network was being made: it is taken down as an orphan
		}
		log.Warn("The lease of an address is damaged, rewriting it if the address is in use", "file", path)
		err = errors.Join(err, os.RemoveAll(path))
		if id, ifName, found := strings.Cut(owner, "-"); found {
			err = errors.Join(err, os.WriteFile(path, []byte(id+"\r\n"+ifName), 0o600))
		}
	}
	return err
}

// lesseeByAttachments is the name of the attachment that has an address, "" if none is known: one
// whose content has it, or else one of the sandbox that the lease is of.
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

// hasAddress reports whether an attachment has an address, also if it can only be read in part:
// annotations of the pod, which it has too, can name any address.
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

// setAsideFolders moves folders out of the way that are in the places of files of ours.
func setAsideFolders(p paths, log *slog.Logger) error {
	for _, file := range []string{
		p.config(), p.conflist(), p.network(), p.log(), p.log() + ".1", p.log() + ".next", p.record(), p.imageList(),
		p.current(), p.current() + ".next", p.socket(), p.ttrpcSocket(),
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

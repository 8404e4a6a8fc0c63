// Package csitest is a small CSI driver for tests whose volumes are directories of this machine. It
// records each call, and fails, hangs or exits in the calls that the test selects.
//
// Owns: the directory that it is given: the data of volumes, the sockets, the record of calls, the
// pending faults.
// Reads: the mount table.
// Never: keeps state in memory: a driver that was killed continues from its directory.
package csitest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	mount "k8s.io/mount-utils"
)

// Driver is one driver. Its fields must not change while it serves.
type Driver struct {
	Name, NodeID string
	// Dir is the directory of all state: data/<volume>, csi.sock, calls, faults/<method>; and the
	// abnormal condition of a volume: condition/<volume>.
	Dir string
	// Device is the block device that is published for block volumes.
	Device string
	// Registry is the directory of plugin registration sockets.
	Registry string
	// Stages, Groups, Expands, Conditions enable capabilities: staging, VOLUME_MOUNT_GROUP,
	// expansion, volume conditions.
	Stages, Groups, Expands, Conditions bool
	// Memory stages a new tmpfs, mounted with the flags of the call, instead of the volume's data.
	Memory     bool
	MaxVolumes int64
	Topology   map[string]string
	// Mounter mounts; nil uses mount(2).
	Mounter mount.Interface `json:"-"`
}

// Call is one received call.
type Call struct {
	Method         string
	Volume         string            `json:",omitempty"`
	Staging        string            `json:",omitempty"`
	Target         string            `json:",omitempty"`
	ReadOnly       bool              `json:",omitempty"`
	Block          bool              `json:",omitempty"`
	Group          string            `json:",omitempty"`
	FSType         string            `json:",omitempty"`
	Flags          []string          `json:",omitempty"`
	Mode           string            `json:",omitempty"`
	Context        map[string]string `json:",omitempty"`
	PublishContext map[string]string `json:",omitempty"`
	Secrets        map[string]string `json:",omitempty"`
	Bytes          int64             `json:",omitempty"`
}

// Faults of a call.
const (
	// Fail returns a code before any work, FailAfter after all work: "fail 13".
	Fail      = "fail"
	FailAfter = "fail-after"
	// Hang blocks until the caller cancels before any work, HangAfter after all work.
	Hang      = "hang"
	HangAfter = "hang-after"
	// Die kills the process before any work, DieAfter after all work.
	Die      = "die"
	DieAfter = "die-after"
)

// Break injects a fault into the next call of the method; code is the gRPC code for Fail and
// FailAfter.
func Break(dir, method, fault string, code codes.Code) error {
	faults := filepath.Join(dir, "faults")
	if err := os.MkdirAll(faults, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(faults, method), []byte(fmt.Sprintf("%s %d", fault, code)), 0o600)
}

// Broken reports whether the method's fault is still pending.
func Broken(dir, method string) bool {
	_, err := os.Lstat(filepath.Join(dir, "faults", method))
	return err == nil
}

// Calls returns the calls of drivers in the directory, oldest first, except NodeGetCapabilities and
// NodeGetInfo.
func Calls(dir string) ([]Call, error) {
	b, err := os.ReadFile(filepath.Join(dir, "calls"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []Call
	for line := range strings.Lines(string(b)) {
		var c Call
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			return nil, fmt.Errorf("calls of the driver: %q: %w", line, err)
		}
		out = append(out, c)
	}
	return out, nil
}

// Main serves the driver that the JSON file describes, until the process is killed.
func Main(file string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var d Driver
	if err := json.Unmarshal(b, &d); err != nil {
		return err
	}
	if _, err := d.Serve(); err != nil {
		return err
	}
	select {}
}

// Serve starts the driver and its registration service. stop stops both and leaves the sockets
// behind, as a kill does.
func (d *Driver) Serve() (stop func(), err error) {
	if d.Mounter == nil {
		d.Mounter = mount.New("")
	}
	if err := os.MkdirAll(filepath.Join(d.Dir, "data"), 0o700); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(d.Registry, 0o750); err != nil {
		return nil, err
	}
	node, registration := grpc.NewServer(), grpc.NewServer()
	d.Register(node)
	d.Register(registration)
	for _, s := range []struct {
		server *grpc.Server
		path   string
	}{{node, d.Socket()}, {registration, filepath.Join(d.Registry, d.Name+"-reg.sock")}} {
		if err := os.Remove(s.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		l, err := net.Listen("unix", s.path)
		if err != nil {
			return nil, err
		}
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		go func() { _ = s.server.Serve(l) }()
	}
	return func() { node.Stop(); registration.Stop() }, nil
}

// Register registers the driver and its registration service with the server. Dir and Mounter must
// be set.
func (d *Driver) Register(s *grpc.Server) {
	csiapi.RegisterNodeServer(s, nodeServer{driver: d})
	registerapi.RegisterRegistrationServer(s, registrationServer{driver: d})
}

// Socket returns the path of the driver's socket.
func (d *Driver) Socket() string { return filepath.Join(d.Dir, "csi.sock") }

type registrationServer struct {
	registerapi.UnimplementedRegistrationServer
	driver *Driver
}

// GetInfo returns type, name, endpoint and versions of the driver.
func (s registrationServer) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: registerapi.CSIPlugin, Name: s.driver.Name, Endpoint: s.driver.Socket(), SupportedVersions: []string{"1.0.0"}}, nil
}

// NotifyRegistrationStatus records the result of the registration like a call.
func (s registrationServer) NotifyRegistrationStatus(_ context.Context, r *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	if !r.PluginRegistered {
		return &registerapi.RegistrationStatusResponse{}, s.driver.record(Call{Method: "refused", Context: map[string]string{"error": r.Error}})
	}
	return &registerapi.RegistrationStatusResponse{}, s.driver.record(Call{Method: "registered"})
}

func (d *Driver) record(c Call) error {
	line, err := json.Marshal(c)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(d.Dir, "calls"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// die kills the process. It does not return.
func die() error {
	if err := unix.Kill(os.Getpid(), unix.SIGKILL); err != nil {
		return err
	}
	select {}
}

// handle records and executes a call, with its pending fault.
func (d *Driver) handle(ctx context.Context, c Call, do func() error) error {
	fault, code := "", codes.OK
	file := filepath.Join(d.Dir, "faults", c.Method)
	if b, err := os.ReadFile(file); err == nil {
		name, number, _ := strings.Cut(string(b), " ")
		n, _ := strconv.Atoi(number)
		fault, code = name, codes.Code(n)
		if err := os.Remove(file); err != nil {
			return err
		}
	}
	if err := d.record(c); err != nil {
		return err
	}
	switch fault {
	case Fail:
		return status.Error(code, "as the test wants it")
	case Hang:
		<-ctx.Done()
		return ctx.Err()
	case Die:
		return die()
	}
	if err := do(); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	switch fault {
	case FailAfter:
		return status.Error(code, "as the test wants it")
	case HangAfter:
		<-ctx.Done()
		return ctx.Err()
	case DieAfter:
		return die()
	}
	return nil
}

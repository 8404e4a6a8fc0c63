// Package dratest is a small DRA driver for tests, with devices that are only names. It records
// each call; tests inject faults into calls: errors, hangs, wrong responses and crashes.
//
// Owns: the directory that it is given, with prepared claims, the socket, recorded calls, pending
// faults and the health of devices; the CDI specifications that it writes.
// Reads: that directory.
// Never: stores anything in memory: a driver that was killed resumes where it was.
package dratest

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

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	healthapi "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	drav1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"berth/internal/host/inotify"
)

// Driver is a DRA driver. Its fields must not change while it serves.
type Driver struct {
	// Name is the driver name, and the vendor of its CDI names.
	Name string
	// Dir is its data directory: prepared/<claim UID>, devices/<claim name>, dra.sock, calls,
	// faults/<method>, health.json.
	Dir string
	// Registry is the directory of plugins' registration sockets.
	Registry string
	// CDI is the directory of CDI specifications, for real containers; "" writes none. A container
	// with a device has the variable DRA_<claim UID>_<device>, with "_" for each "-".
	CDI string
	// Pool is the pool of its devices: the node name.
	Pool string
	// Versions are the services in the registration; nil means v1 and v1beta1. It serves both.
	Versions []string
	// Health: it serves the health of devices.
	Health bool
}

// Call is a call that the driver received.
type Call struct {
	Method string
	// Claims are the UIDs of the claims, and Version is that of the service.
	Claims  []string `json:",omitempty"`
	Version string   `json:",omitempty"`
	Error   string   `json:",omitempty"`
}

// Device is a device of a claim.
type Device struct {
	Name     string
	Requests []string `json:",omitempty"`
	Share    string   `json:",omitempty"`
	// CDI are its CDI names; nil means one, derived from the claim and the device.
	CDI []string
}

// DeviceHealth is the health of a device.
type DeviceHealth struct {
	Name, Message  string
	Status         healthapi.HealthStatus
	TimeoutSeconds int64
}

// Faults of a call.
const (
	// Fail returns an error with a code before the call has an effect, FailAfter afterwards.
	Fail      = "fail"
	FailAfter = "fail-after"
	// Hang blocks until the caller cancels, before the call has an effect, HangAfter afterwards.
	Hang      = "hang"
	HangAfter = "hang-after"
	// Die kills the process before the call has an effect, DieAfter afterwards.
	Die      = "die"
	DieAfter = "die-after"
	// Refuse responds with an error for each claim, Skip with no claim, Stray with an additional
	// claim, Huge with a response of 10 MB.
	Refuse = "refuse"
	Skip   = "skip"
	Stray  = "stray"
	Huge   = "huge"
)

// Names of the driver's methods in faults and calls.
const (
	Prepare   = "NodePrepareResources"
	Unprepare = "NodeUnprepareResources"
	Watch     = "NodeWatchResources"
)

// Break injects a fault into the next call of the method; code is the gRPC code of Fail and
// FailAfter.
func Break(dir, method, fault string, code codes.Code) error {
	return write(filepath.Join(dir, "faults", method), []byte(fmt.Sprintf("%s %d", fault, code)))
}

// Broken reports whether the method's fault is pending.
func Broken(dir, method string) bool {
	_, err := os.Lstat(filepath.Join(dir, "faults", method))
	return err == nil
}

// SetDevices sets the devices of claims with a name. The default is one device, "device".
func SetDevices(dir, claim string, devices ...Device) error {
	b, err := json.Marshal(devices)
	if err != nil {
		return err
	}
	return write(filepath.Join(dir, "devices", claim), b)
}

// SetHealth sets the health of devices, which the driver reports at once. The driver watches the
// file, so this does not work in a synctest bubble.
func SetHealth(dir string, devices ...DeviceHealth) error {
	b, err := json.Marshal(devices)
	if err != nil {
		return err
	}
	return write(filepath.Join(dir, "health.json"), b)
}

// write replaces a file atomically.
func write(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	temp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path))
	if err := os.WriteFile(temp, content, 0o644); err != nil {
		return err
	}
	return os.Rename(temp, path)
}

// Calls returns the calls that drivers with the data directory received, oldest first.
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

// Prepared returns the UIDs of prepared claims, sorted.
func Prepared(dir string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(dir, "prepared"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var out []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			out = append(out, e.Name())
		}
	}
	return out, err
}

// Main serves the driver that the JSON file describes until the process is killed.
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

// Serve starts to serve on the driver's and the registration socket. stop stops the servers and
// leaves the sockets behind, as a kill does.
func (d *Driver) Serve() (stop func(), err error) {
	for _, dir := range []string{d.Dir, d.Registry} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return nil, err
		}
	}
	driver, registration := grpc.NewServer(), grpc.NewServer()
	d.Register(driver)
	d.Register(registration)
	for _, s := range []struct {
		server *grpc.Server
		path   string
	}{{driver, d.Socket()}, {registration, filepath.Join(d.Registry, d.Name+"-reg.sock")}} {
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
	return func() { driver.Stop(); registration.Stop() }, nil
}

// Register registers the driver's services with the server: both versions, health and registration.
func (d *Driver) Register(s *grpc.Server) {
	drav1.RegisterDRAPluginServer(s, server{driver: d, version: "v1"})
	drav1beta1.RegisterDRAPluginServer(s, drav1beta1.V1ServerWrapper{DRAPluginServer: server{driver: d, version: "v1beta1"}})
	if d.Health {
		healthapi.RegisterDRAResourceHealthServer(s, healthServer{driver: d})
	}
	registerapi.RegisterRegistrationServer(s, registrationServer{driver: d})
}

// Socket returns the endpoint in the driver's registration.
func (d *Driver) Socket() string { return filepath.Join(d.Dir, "dra.sock") }

// Services returns the versions in the driver's registration.
func (d *Driver) Services() []string {
	if d.Versions != nil {
		return d.Versions
	}
	return []string{drav1.DRAPluginService, drav1beta1.DRAPluginService}
}

type registrationServer struct {
	registerapi.UnimplementedRegistrationServer
	driver *Driver
}

// GetInfo returns the driver's type, name, endpoint and versions.
func (s registrationServer) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: registerapi.DRAPlugin, Name: s.driver.Name, Endpoint: s.driver.Socket(), SupportedVersions: s.driver.Services()}, nil
}

// NotifyRegistrationStatus records the result of the registration as a call.
func (s registrationServer) NotifyRegistrationStatus(_ context.Context, r *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	c := Call{Method: "registered"}
	if !r.PluginRegistered {
		c = Call{Method: "refused", Error: r.Error}
	}
	return &registerapi.RegistrationStatusResponse{}, s.driver.record(c)
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

// fault returns the pending fault of the method and removes it.
func (d *Driver) fault(method string) (name string, code codes.Code, err error) {
	file := filepath.Join(d.Dir, "faults", method)
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", codes.OK, nil
	}
	if err != nil {
		return "", codes.OK, err
	}
	name, number, _ := strings.Cut(string(b), " ")
	n, _ := strconv.Atoi(number)
	return name, codes.Code(n), os.Remove(file)
}

// before executes a fault before the call has an effect.
func before(ctx context.Context, fault string, code codes.Code) error {
	switch fault {
	case Fail:
		return status.Error(code, "as the test wants it")
	case Hang:
		<-ctx.Done()
		return ctx.Err()
	case Die:
		return die()
	}
	return nil
}

// after executes a fault after the call has had its effect.
func after(ctx context.Context, fault string, code codes.Code) error {
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

type healthServer struct {
	healthapi.UnimplementedDRAResourceHealthServer
	driver *Driver
}

// NodeWatchResources sends the content of the health file, and again after each change.
func (s healthServer) NodeWatchResources(_ *healthapi.NodeWatchResourcesRequest, stream grpc.ServerStreamingServer[healthapi.NodeWatchResourcesResponse]) error {
	fault, code, err := s.driver.fault(Watch)
	if err == nil {
		err = s.driver.record(Call{Method: Watch})
	}
	if err == nil {
		err = before(stream.Context(), fault, code)
	}
	if err != nil {
		return err
	}
	watch, err := inotify.Open()
	if err != nil {
		return err
	}
	defer watch.Close()
	if err := watch.Add(s.driver.Dir); err != nil {
		return err
	}
	sent := ""
	for {
		b, err := os.ReadFile(filepath.Join(s.driver.Dir, "health.json"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if string(b) != sent {
			sent = string(b)
			if err := s.send(b, stream); err != nil {
				return err
			}
		}
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case e, ok := <-watch.Events():
			if !ok || e.Err != nil {
				return status.Error(codes.Internal, "the watch of the health file ended")
			}
		}
	}
}

func (s healthServer) send(content []byte, stream grpc.ServerStreamingServer[healthapi.NodeWatchResourcesResponse]) error {
	var devices []DeviceHealth
	if err := json.Unmarshal(content, &devices); err != nil {
		return err
	}
	out := &healthapi.NodeWatchResourcesResponse{}
	for _, d := range devices {
		out.Devices = append(out.Devices, &healthapi.DeviceHealth{
			Device: &healthapi.DeviceIdentifier{PoolName: s.driver.Pool, DeviceName: d.Name},
			Health: d.Status, Message: d.Message, HealthCheckTimeoutSeconds: d.TimeoutSeconds,
		})
	}
	return stream.Send(out)
}

package dratest

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
)

type server struct {
	drav1.UnimplementedDRAPluginServer
	driver  *Driver
	version string
}

// take executes a call about claims with its fault; do is called for each claim, unless the fault
// skips them.
func (s server) take(ctx context.Context, method string, claims []*drav1.Claim, do func(*drav1.Claim) error) (fault string, err error) {
	fault, code, err := s.driver.fault(method)
	if err != nil {
		return "", err
	}
	c := Call{Method: method, Version: s.version}
	for _, claim := range claims {
		c.Claims = append(c.Claims, claim.Uid)
	}
	if err := s.driver.record(c); err != nil {
		return "", err
	}
	if err := before(ctx, fault, code); err != nil {
		return "", err
	}
	for _, claim := range claims {
		if fault == Refuse || fault == Skip {
			continue
		}
		if err := do(claim); err != nil {
			return "", status.Error(codes.Internal, err.Error())
		}
	}
	return fault, after(ctx, fault, code)
}

// NodePrepareResources prepares claims. It is idempotent.
func (s server) NodePrepareResources(ctx context.Context, r *drav1.NodePrepareResourcesRequest) (*drav1.NodePrepareResourcesResponse, error) {
	out := &drav1.NodePrepareResourcesResponse{Claims: map[string]*drav1.NodePrepareResourceResponse{}}
	fault, err := s.take(ctx, Prepare, r.Claims, func(c *drav1.Claim) error {
		devices, err := s.prepare(c)
		out.Claims[c.Uid] = &drav1.NodePrepareResourceResponse{Devices: devices}
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, c := range r.Claims {
		switch fault {
		case Refuse:
			out.Claims[c.Uid] = &drav1.NodePrepareResourceResponse{Error: "as the test wants it"}
		case Huge:
			out.Claims[c.Uid].Devices = []*drav1.Device{{PoolName: s.driver.Pool, DeviceName: strings.Repeat("x", 10<<20)}}
		}
	}
	if fault == Stray {
		out.Claims["stray"] = &drav1.NodePrepareResourceResponse{Devices: []*drav1.Device{{PoolName: s.driver.Pool, DeviceName: "stray", CdiDeviceIds: []string{s.driver.Name + "/stray=stray"}}}}
	}
	return out, nil
}

// NodeUnprepareResources unprepares claims, including those that were never prepared.
func (s server) NodeUnprepareResources(ctx context.Context, r *drav1.NodeUnprepareResourcesRequest) (*drav1.NodeUnprepareResourcesResponse, error) {
	out := &drav1.NodeUnprepareResourcesResponse{Claims: map[string]*drav1.NodeUnprepareResourceResponse{}}
	fault, err := s.take(ctx, Unprepare, r.Claims, func(c *drav1.Claim) error {
		out.Claims[c.Uid] = &drav1.NodeUnprepareResourceResponse{}
		return s.unprepare(c)
	})
	if err != nil {
		return nil, err
	}
	if fault == Refuse {
		for _, c := range r.Claims {
			out.Claims[c.Uid] = &drav1.NodeUnprepareResourceResponse{Error: "as the test wants it"}
		}
	}
	if fault == Stray {
		out.Claims["stray"] = &drav1.NodeUnprepareResourceResponse{}
	}
	return out, nil
}

// class is the class of the driver's CDI names.
const class = "device"

// prepare writes the CDI specification of a claim, and records that it is prepared.
func (s server) prepare(c *drav1.Claim) ([]*drav1.Device, error) {
	devices := []Device{{Name: "device"}}
	b, err := os.ReadFile(filepath.Join(s.driver.Dir, "devices", c.Name))
	if err == nil {
		err = json.Unmarshal(b, &devices)
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return nil, err
	}
	var out []*drav1.Device
	for i, d := range devices {
		if d.CDI == nil {
			devices[i].CDI = []string{s.driver.Name + "/" + class + "=" + c.Uid + "-" + d.Name}
		}
		v := &drav1.Device{PoolName: s.driver.Pool, DeviceName: d.Name, RequestNames: d.Requests, CdiDeviceIds: devices[i].CDI}
		if d.Share != "" {
			v.ShareId = &d.Share
		}
		out = append(out, v)
	}
	if s.driver.CDI != "" {
		if err := s.specify(c.Uid, devices); err != nil {
			return nil, err
		}
	}
	note, err := json.Marshal(devices)
	if err != nil {
		return nil, err
	}
	return out, write(filepath.Join(s.driver.Dir, "prepared", c.Uid), note)
}

// specification is a CDI specification of the claim's devices (Container Device Interface, 0.6.0).
type specification struct {
	Version string      `json:"cdiVersion"`
	Kind    string      `json:"kind"`
	Devices []cdiDevice `json:"devices"`
}

type cdiDevice struct {
	Name  string `json:"name"`
	Edits struct {
		Env []string `json:"env"`
	} `json:"containerEdits"`
}

func (s server) specify(uid string, devices []Device) error {
	spec := specification{Version: "0.6.0", Kind: s.driver.Name + "/" + class}
	for _, d := range devices {
		for _, id := range d.CDI {
			kind, name, _ := strings.Cut(id, "=")
			if kind != spec.Kind {
				continue // another driver's
			}
			v := cdiDevice{Name: name}
			v.Edits.Env = []string{"DRA_" + strings.ReplaceAll(name, "-", "_") + "=" + d.Name}
			spec.Devices = append(spec.Devices, v)
		}
	}
	b, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return write(s.specFile(uid), b)
}

func (s server) specFile(uid string) string {
	return filepath.Join(s.driver.CDI, s.driver.Name+"-"+uid+".json")
}

// unprepare deletes the record last: without it, nothing else of the claim exists.
func (s server) unprepare(c *drav1.Claim) error {
	files := []string{filepath.Join(s.driver.Dir, "prepared", c.Uid)}
	if s.driver.CDI != "" {
		files = append([]string{s.specFile(c.Uid)}, files...)
	}
	for _, file := range files {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

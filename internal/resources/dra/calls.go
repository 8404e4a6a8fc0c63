package dra

import (
	"context"
	"errors"
	"fmt"
	"path"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
)

// callTimeout is the timeout of a driver call.
const callTimeout = 45 * time.Second

// maxText is the maximum length of a driver's error text, in bytes, so that it fits into an event.
const maxText = 800

func (d *drivers) call(ctx context.Context, driver, method string, do func(context.Context, drav1.DRAPluginClient) error) error {
	e, err := d.choose(driver)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	began := time.Now()
	err = do(ctx, e.client)
	d.metrics.called(driver, method, time.Since(began), err)
	if status.Code(err) == codes.DeadlineExceeded && time.Since(began) > callTimeout-time.Second {
		// The same message, whether the client or the server times out first.
		err = status.FromContextError(context.DeadlineExceeded).Err()
	}
	if err != nil {
		return fmt.Errorf("DRA driver %s: %s: %w", driver, path.Base(method), shorten(err))
	}
	return nil
}

// shorten cuts a long gRPC error message and preserves the code.
func shorten(err error) error {
	s, ok := status.FromError(err)
	if !ok || len(s.Message()) <= maxText {
		return err
	}
	return status.Error(s.Code(), cut(s.Message(), maxText))
}

func (r reference) proto() *drav1.Claim {
	return &drav1.Claim{Namespace: r.key.Namespace, Uid: string(r.uid), Name: r.key.Name}
}

func protos(claims []reference) []*drav1.Claim {
	var out []*drav1.Claim
	for _, r := range claims {
		out = append(out, r.proto())
	}
	return out
}

// prepare calls the driver's NodePrepareResources. It returns the devices of the prepared claims,
// also with an error.
func (d *drivers) prepare(ctx context.Context, driver string, claims []reference) (map[types.NamespacedName][]Device, error) {
	var answer *drav1.NodePrepareResourcesResponse
	err := d.call(ctx, driver, drav1.DRAPlugin_NodePrepareResources_FullMethodName, func(ctx context.Context, c drav1.DRAPluginClient) (err error) {
		answer, err = c.NodePrepareResources(ctx, &drav1.NodePrepareResourcesRequest{Claims: protos(claims)})
		return err
	})
	if err != nil {
		return nil, err
	}
	made := map[types.NamespacedName][]Device{}
	err = checkResponse("NodePrepareResources", claims, answer.GetClaims(), func(r reference, a *drav1.NodePrepareResourceResponse) {
		devices := []Device{}
		for _, v := range a.GetDevices() {
			devices = append(devices, Device{Driver: driver, Pool: v.GetPoolName(), Name: v.GetDeviceName(), ShareID: v.ShareId, Requests: v.GetRequestNames(), CDI: v.GetCdiDeviceIds()})
		}
		made[r.key] = devices
	})
	if err != nil {
		return made, fmt.Errorf("DRA driver %s: %w", driver, err)
	}
	return made, nil
}

// unprepare calls the driver's NodeUnprepareResources. It returns an error if any claim was not
// unprepared.
func (d *drivers) unprepare(ctx context.Context, driver string, claims []reference) error {
	var answer *drav1.NodeUnprepareResourcesResponse
	err := d.call(ctx, driver, drav1.DRAPlugin_NodeUnprepareResources_FullMethodName, func(ctx context.Context, c drav1.DRAPluginClient) (err error) {
		answer, err = c.NodeUnprepareResources(ctx, &drav1.NodeUnprepareResourcesRequest{Claims: protos(claims)})
		return err
	})
	if err != nil {
		return err
	}
	err = checkResponse("NodeUnprepareResources", claims, answer.GetClaims(), func(reference, *drav1.NodeUnprepareResourceResponse) {})
	if err != nil {
		return fmt.Errorf("DRA driver %s: %w", driver, err)
	}
	return nil
}

// checkResponse validates a driver's response and calls succeeded for each claim that succeeded. A
// response for a claim that was not requested invalidates the whole response.
func checkResponse[A interface{ GetError() string }](method string, requested []reference, answers map[string]A, succeeded func(reference, A)) error {
	uids := map[string]bool{}
	for _, r := range requested {
		uids[string(r.uid)] = true
	}
	for uid := range answers {
		if !uids[uid] {
			return fmt.Errorf("%s answered for the unknown claim UID %q", method, cut(uid, 100))
		}
	}
	var errs []error
	skipped := 0
	for _, r := range requested {
		a, answered := answers[string(r.uid)]
		switch {
		case !answered:
			skipped++
		case a.GetError() != "":
			errs = append(errs, fmt.Errorf("%s failed for ResourceClaim %s: %s", method, r.key.Name, cut(a.GetError(), maxText)))
		default:
			succeeded(r, a)
		}
	}
	if skipped > 0 {
		errs = append(errs, fmt.Errorf("%s skipped %d ResourceClaims", method, skipped))
	}
	return errors.Join(errs...)
}

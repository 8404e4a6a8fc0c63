package main

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/api/server"
	"berth/internal/explain"
	"berth/internal/host/preflight"
)

// checkThresholds returns the eviction thresholds as checks, none if no agent reports any.
func checkThresholds(ctx context.Context, c *client, now time.Time) []preflight.Check {
	var list []server.Threshold
	if err := c.getJSON(ctx, server.PathThresholds, nil, &list); err != nil {
		return nil // the agent's own checks report it
	}
	var checks []preflight.Check
	for _, t := range list {
		checks = append(checks, checkThreshold(t, now))
	}
	return checks
}

func checkThreshold(t server.Threshold, now time.Time) preflight.Check {
	check := preflight.Check{Name: t.Signal + "<" + t.Value, Result: preflight.OK}
	if t.GraceSeconds > 0 {
		check.Name += fmt.Sprintf(" for %s", time.Duration(t.GraceSeconds*float64(time.Second)))
	}
	if t.Ignored {
		check.Result, check.Found = preflight.Warn, "it is in the configuration, and ignored"
		check.Consequence = "the threshold of nodefs or imagefs holds for writable layers, whichever they are on; set these"
		return check
	}
	if t.Capacity == 0 {
		check.Result, check.Found = preflight.Warn, "not known what is left"
		check.Consequence = "no pod is evicted for it until it is"
		if t.Signal == "allocatableMemory.available" {
			check.Result, check.Consequence = preflight.OK, ""
			check.Found = "pods have no limit in all, other than the machine's memory"
		}
		return check
	}
	check.Found = fmt.Sprintf("%s of %s left", quantityOf(t.Signal, t.Available), quantityOf(t.Signal, t.Capacity))
	if strings.HasSuffix(t.Value, "%") {
		check.Found += ", " + quantityOf(t.Signal, t.Least) + " are kept"
	}
	if t.MetSince != nil {
		check.Result = preflight.Warn
		check.Found += fmt.Sprintf(" (met for %s)", formatAge(metav1.NewTime(*t.MetSince), now))
		check.Consequence = "pods are evicted until there is more; see docs/resources.md#when-the-node-runs-short"
	}
	return check
}

// quantityOf formats bytes, or a number of inodes or tasks.
func quantityOf(signal string, n uint64) string {
	amount := int64(min(n, math.MaxInt64))
	if strings.HasSuffix(signal, ".inodesFree") || signal == "pid.available" {
		return resource.NewQuantity(amount, resource.DecimalSI).String()
	}
	return explain.ByteSize(amount)
}

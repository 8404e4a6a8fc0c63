// Package metrics collects the state of several packages at a Prometheus scrape: usage in the form
// of the kubelet's /metrics/resource and /metrics/cadvisor, probes, and pods, their volumes and
// their logs under the kubelet's names (/metrics). It counts pod lifecycle changes from their
// statuses.
//
// A package counts its own work: its metrics are in its metrics.go, and are registered with the
// registerer that it is given.
//
// Owns: the names, labels and buckets of what it collects; the counters of pods and containers.
// Reads: readings of usage, pods and observations, with each scrape.
// Never: registers anywhere but with the registry that it is given; uses a label with unbounded
// user-controlled values.
package metrics

// Package metrics collects what several packages know, when Prometheus scrapes: use in the form of
// the kubelet's /metrics/resource and /metrics/cadvisor, probes, and pods, their volumes and their
// logs under the kubelet's names (/metrics). What becomes of pods it counts from their statuses.
//
// What one package does, that package counts: its families are in its metrics.go, and are
// registered with the registerer that it is given.
//
// Owns: the names, labels and buckets of what it collects; the counters of pods and containers.
// Reads: readings of use, pods and observations, with each scrape.
// Never: registers anywhere but with the registry that it is given; uses a label whose values a
// user could make up without bound.
package metrics

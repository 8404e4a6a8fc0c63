// Package metrics is what Prometheus scrapes: use in the form of the kubelet's /metrics/resource and /metrics/cadvisor, and the agent's own account of
// itself under the kubelet's names (/metrics).
//
// Other packages know nothing of Prometheus: they call a function that they were given (Agent's methods), or are asked at the time of a scrape.
//
// Owns: the names, labels and buckets of metrics; the counters of the agent.
// Reads: readings of use, pods and observations, with each scrape.
// Never: registers anywhere but with the registry that it is given; uses a label whose values a user could make up without bound.
package metrics

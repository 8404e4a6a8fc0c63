// Package podmetrics serves metrics.k8s.io/v1beta1, which kubectl top requests: the CPU and memory
// usage of pods and of the node. A cluster has a metrics server that scrapes every node
// periodically; this package reads the usage when a client requests it.
//
// Owns: the newest reading, for a few seconds.
// Reads: the summary of the agent's statistics, the labels of pods.
// Never: measures without a request.
package podmetrics

// Package podmetrics answers metrics.k8s.io/v1beta1, which kubectl top asks: what pods and the node use
// now. A cluster has a metrics server for that, which asks every node all the time; here somebody
// who asks has it measured.
//
// Owns: the newest reading, for a few seconds.
// Reads: the summary of the agent's statistics, the labels of pods.
// Never: measures while nobody asks.
package podmetrics

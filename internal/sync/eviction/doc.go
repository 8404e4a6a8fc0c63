// Package eviction is evictionManager: it ends pods that take more of the machine's disks than they
// were granted (Kubernetes documentation, "Local ephemeral storage").
//
//	every 10 s: what is free ──► a pod may have grown past a limit, or was not looked at for a minute ──► its files are walked ──► evict it
//
// It does not end pods because the node runs short of something.
//
// Owns: when a pod with such limits is looked at, and the decision to evict it.
// Reads: limits and lifecycles of pods, what their files take.
// Never: looks at a pod without such limits, or has a clock while there is none with them; stops a
// container itself.
package eviction

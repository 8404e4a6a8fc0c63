// Package pvbinder binds PersistentVolumeClaims to PersistentVolumes, makes the claims of generic
// ephemeral volumes, and says what becomes of a volume whose claim is gone.
//
//	store.Since ──► what changed ──► whom may that concern? ──► look at those ──► create, update
//	                                                                 ▲
//	                                     one deadline: a write is tried again
//
// It is what kube-controller-manager does by its controllers of persistent and of ephemeral volumes
// (kubernetes.io/docs/concepts/storage/persistent-volumes). Two things a scheduler does elsewhere:
// where a class waits for the first consumer, a pod that uses the claim is enough, as there is one
// node; and the node is written on a claim that an external provisioner is to serve.
//
// A binding is two writes: the volume gets the claim, then the claim gets the volume. After the
// first, the volume is the claim's alone; whoever looks next does the second.
//
// Owns: an index of which claim and which volume name each other, and of the claims of ephemeral
// volumes.
// Reads: the store. Each decision is made of what it has at that moment, and each write has the uid
// and the resourceVersion that it was made of.
// Never: polls, takes a volume from a claim that lives, makes or deletes what is in a volume.
package pvbinder

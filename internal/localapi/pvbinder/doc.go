// Package pvbinder binds PersistentVolumeClaims to PersistentVolumes, creates the claims of generic
// ephemeral volumes, and releases volumes whose claim is deleted.
//
//	store.Since ──► changes ──► objects they may concern ──► Sync ──► create, update
//	                                                           ▲
//	                                      one deadline: a write is retried
//
// It does what kube-controller-manager's persistent volume and ephemeral volume controllers do
// (kubernetes.io/docs/concepts/storage/persistent-volumes), and two tasks of a scheduler: for a
// class that waits for the first consumer, a pod that uses the claim is enough, as there is one
// node; and it sets the selected node of a claim for an external provisioner.
//
// A binding is two writes: first the claim is set in the volume, then the volume in the claim.
// After the first, the volume is reserved for the claim; the next sync makes the second.
//
// Owns: an index of which claims and volumes refer to each other, and of the claims of ephemeral
// volumes.
// Reads: the store. Each decision uses its current state, and each write has the uid and the
// resourceVersion that the decision was based on.
// Never: polls, unbinds a volume from an existing claim, creates or deletes the data of a volume.
package pvbinder

// Package manifests applies the objects that manifests define to the store of the local API, and
// deletes them with their manifest.
//
// Annotations mark an object as defined by a file. An existing object without the mark is neither
// changed nor deleted, and Health reports the file that defines it too. API changes to an object of
// a file persist until the manifests change or the agent restarts; then the object is reset to its
// file, or created again if it was deleted. Fields that the system writes are preserved: the volume
// of a claim, the claim of a volume, their status, their finalizers.
//
// A namespace that an object or a pod of a manifest needs is created, and never deleted.
//
// Each write is complete in itself: after a crash between two of them, the next pass completes the
// rest.
//
// Owns: the objects that carry the mark.
// Reads: the store.
// Never: validates an object (internal/source/validation has), polls, adopts an object without the
// mark.
package manifests

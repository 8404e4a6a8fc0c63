// Package manifests writes the objects that manifests define into the store of the local API, and
// takes them out again with their manifest.
//
// An object is marked as its file's by annotations. One of that name without the mark is somebody
// else's: it is neither changed nor removed, and the file that defines it too is named in Health.
// What somebody changes by the API in an object of a file stays until the manifests change next, or
// the agent starts: then the object is as its file says again. So does one that was deleted come
// back. What the system writes is left alone: the volume of a claim, the claim of a volume, their
// state, their finalizers.
//
// A namespace that an object or a pod of a manifest needs is made, and stays.
//
// Each write is complete in itself: whoever is killed between two of them finds in the store what
// is still to be done.
//
// Owns: the objects that carry the mark.
// Reads: the store.
// Never: judges an object (internal/source/validation has), polls, takes over what has no mark.
package manifests

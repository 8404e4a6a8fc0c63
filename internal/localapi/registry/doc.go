// Package registry runs the child that judges what is written to the local API: the registries of
// kube-apiserver, a program of its own (bundle/registry), over the agent's store.
//
// Owns: the life of the child, its sockets, the calls by which it reaches the store.
// Reads: requests that others have let in, and who makes them (WithIdentity); the file of
// documents.
// Never: decides who may do what, looks into an object, keeps anything.
//
// The first request starts the child, and 60 s without one end it. A child that dies takes the
// requests with it that it had; they are answered 503, and the next request starts another.
//
// What the program says of itself (discovery, OpenAPI, its version) is the same each time, so it is
// written into a file when the program is built (KeepDocuments), and answered out of that.
//
// The child has two descriptors and no path: ListenerDescriptor is a socket on which it serves the
// API over HTTP, and StoreDescriptor one by which it calls the store (Client). It ends when the
// agent's end of that is gone.
package registry

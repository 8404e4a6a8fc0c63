// Package apiserver runs the API writer, the child process that validates and admits writes to the
// local API: kube-apiserver's registries, as a separate program (bundle/apiserver), over the
// agent's store.
//
// Owns: the lifecycle of the child, its sockets, its calls to the store.
// Reads: authorized requests and their users (WithIdentity); the documents file.
// Never: authorizes, decodes an object, persists anything.
//
// The first request starts the child, and 60 s without a request stop it. If a child crashes, its
// requests are answered 503, and the next request starts another.
//
// The program's documents (discovery, OpenAPI, version) never change, so they are written to a file
// when the program is built (KeepDocuments), and served from it.
//
// The child has two descriptors and no path: on ListenerDescriptor, a socket, it serves the API
// over HTTP, and by StoreDescriptor it calls the store (Client). It exits when the agent closes its
// end of the latter.
package apiserver

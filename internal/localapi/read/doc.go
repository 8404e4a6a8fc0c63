// Package read answers what is read of the local API (ADR 12): get, list and watch of its kinds,
// as kube-apiserver answers them.
//
// Owns: nothing; a watch is a revision and the goroutine of its request.
// Reads: the store; for rows of pods, which pulls are under way. Times are those of the request.
// Never: writes, asks who may, starts a goroutine, waits for one client on behalf of another.
//
// A request goes through four steps: what it is written in and what it shows (negotiate.go), what
// it asks (options.go), which objects these are (list.go, watch.go), and how they look (view.go,
// table.go). Objects lie in the store as protobuf. What is shown in protobuf, and all metadata, is
// cut out of that; an object is decoded for JSON, for rows, and for fields that it is selected by.
//
// A list goes out page by page. One that the history of the store leaves behind while its client is
// slow breaks off, which both JSON and protobuf show to the client: it lists again. A list with a
// limit is held, encoded, as it says first how it goes on.
package read

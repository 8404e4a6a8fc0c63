// Package read serves reads of the local API (ADR 12): get, list and watch, as kube-apiserver does.
//
// Owns: nothing; a watch is a revision and the goroutine of its request.
// Reads: the store; for rows of pods, the pulls in progress. Times are those of the request.
// Never: writes, authorizes, starts a goroutine, delays one client for another.
//
// A request has four steps: the media type and the view (media.go), the options (options.go),
// the selection of objects (list.go, watch.go), and their representation (view.go, table.go). The
// store has objects as protobuf. Protobuf responses and all metadata are cut out of that. An object
// is decoded only for JSON, for rows, and for field selectors.
//
// A list is sent page by page. If the history of the store no longer reaches back to its revision
// while a slow client reads, it is aborted. Clients detect that in JSON and protobuf, and list
// again. A list with a limit is encoded in memory first, as it begins with its continue token.
package read

// Package images is imageManager's pull side: it makes a container's image present, by pull policy, one pull per image at a time.
//
// Owns: the pulls in flight, and the back-off of each pod's images.
// Reads: the runtime's image store.
// Never: removes an image, starts a container, keeps a pull alive that nobody waits for.
package images

// Package images is the kubelet's imageManager. It makes container images present according to the
// pull policy, with one pull per image and credentials at a time, prefetches images of later
// containers, and allows a pod to use a present image only if the pod may pull it. It
// garbage-collects unused images.
//
// Owns: image garbage collection, the active pulls and their order, the back-off of each pod's
// images, the credentials from plugins, the pull records.
// Reads: the runtime's image store, the pods' imagePullSecrets and service accounts, the node's
// docker config.
// Never: starts a container, continues a pull that no pod needs, logs a credential.
package images

// Package images is imageManager. It makes a container's image present, by pull policy, one pull
// per image and credentials at a time, some ahead of their containers' turn, and lets a pod use an
// image that is present only if the pod may pull it. It removes images that nobody uses.
//
// Owns: image garbage collection, the pulls in flight and their order, the back-off of each pod's
// images, the credentials that plugins gave, the records of pulls.
// Reads: the runtime's image store, the pods' imagePullSecrets and service accounts, the node's
// docker config.
// Never: starts a container, keeps a pull alive that no pod wants, logs a credential.
package images

// Package objects has the objects that pods refer to: secretManager, configMapManager, service
// accounts and their tokens, services, RuntimeClasses, ClusterTrustBundles and pod certificates.
// They come from an API server.
//
// Owns: one watch per ConfigMap, Secret and RuntimeClass that a pod refers to, or cached copies
// with a TTL; the newest version of each; the tokens that were issued to pods, and their keys and
// certificates.
// Reads: pods, for their references; the API server, through the interface that it declares.
// Never: changes an object, returns an object that no pod of this node has registered, stores
// anything on disk.
package objects

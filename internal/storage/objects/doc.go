// Package objects is what pods need besides themselves: secretManager, configMapManager, service
// accounts and their tokens, services, RuntimeClasses, ClusterTrustBundles and certificates of
// their own. Objects has it from an API server, Local from the manifests of run mode.
//
// Owns: one watch per ConfigMap, Secret and RuntimeClass that a pod refers to, or copies of them
// that serve for a while, the newest of each, the tokens that were issued to pods, and their keys
// and certificates; for Local, the objects of manifests.
// Reads: pods, for what they refer to; the API server, through the interface that it declares.
// Never: changes an object, hands out one of an API server that no pod of this node has registered,
// keeps anything on disk.
package objects

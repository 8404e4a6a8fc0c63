// Package objects is what pods need of the API server besides themselves: secretManager, configMapManager, service-account tokens and
// services.
//
// Owns: one watch per ConfigMap and Secret that a pod refers to, the newest copy of each, the tokens that were issued to pods.
// Reads: pods, for what they refer to; the API server, through the interface that it declares.
// Never: changes an object, hands out one that no pod of this node has registered, keeps anything on disk.
package objects

// Package kube is the agent's client of the API server: REST clients of the API groups that a node
// uses, its calls, and watches.
//
// Owns: the scheme and its codecs, Client (one connection to one API server; limits, deadlines, the
// context of errors), Watch (a set of objects that follows the server's).
// Reads: kubeconfig files and the credential files that they name.
// Never: links a clientset or an informer; delivers a part of a set; accepts an answer of the wrong
// kind or of unlimited size; repeats a write, unless the server requests it (Retry-After).
//
// Errors of calls name the operation and the object and wrap the server's error, so that
// apierrors.IsNotFound and similar functions work.
package kube

// Package kube is the agent's way to the API server: REST clients of the few API groups that a node
// uses, the few calls that it makes, and watches.
//
// Owns: the scheme and its codecs, Client (one connection to one API server; limits, deadlines, the
// context of errors), Watch (a set of objects that is kept equal to the server's).
// Reads: kubeconfig files and the credential files that they name.
// Never: links a clientset or an informer; delivers a part of a set; takes an answer for what it is
// not, or reads one that has no end; repeats a write, unless the server asks for it (Retry-After).
//
// Errors of calls name the operation and the object and keep what the server said, so that
// apierrors.IsNotFound and its kin answer for them.
package kube

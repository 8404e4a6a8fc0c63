// Package explain holds what the explanation of a pod consists of, as the components that know it
// report it and clients of the agent receive it.
//
// Owns: nothing.
// Reads: nothing.
// Never: asks a component.
package explain

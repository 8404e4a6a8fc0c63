// Package explain answers why a pod is in its state and what happens next.
//
//	Report ─► facts ─► verdicts, next, steps, decisions ─► Answer
//
// A Report holds what the agent knows of the pods of one name. Explain finds the first row of the
// table of verdicts that holds of it, and renders its template. All clients show the same Answer;
// layout is theirs.
//
// Owns: the types of reports and answers, and the words of answers.
// Reads: nothing.
// Never: asks a component, or lays out an answer for a terminal.
package explain

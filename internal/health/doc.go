// Package health is the health table of the agent. Each condition is declared once; /healthz, the
// Node's Ready condition and the command line are renderings of this table.
//
// Owns: the declared conditions (declared.go): their dependencies, when they are reported, and
// their effects.
// Reads: the checks of the components, on request.
// Never: polls, runs a timer, or detects problems itself.
//
// A check returns immediately, from known state. Its error has a method Since() time.Time if the
// owner knows the time, as the errors of Since, Latch and Latches have.
package health

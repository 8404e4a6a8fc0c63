// Package health is the table of what can be wrong with the agent. Each condition is declared once;
// /healthz, the Node's Ready condition and the command line are renderings of this table.
//
// Owns: the declared conditions (declared.go): what each depends on, when it shows, and what
// follows from it.
// Reads: the checks of the components, at the moment that somebody asks.
// Never: polls, runs a clock, or finds out by itself that something is wrong.
//
// An owner answers a check at once, from what it knows. Its error says since when it holds, if the
// owner knows that: it has a method Since() time.Time, as the errors of Since, Latch and Latches
// have.
package health

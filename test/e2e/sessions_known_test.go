//go:build e2e

package e2e

// sessionDifferences are what the local API is to say otherwise.
var sessionDifferences = []sessionDifference{}

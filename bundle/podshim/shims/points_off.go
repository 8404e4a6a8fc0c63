//go:build !podshimpoints

package shims

// crashPoint and crashPointDirDeleted are crash points of tests; see points_on.go.
func crashPoint(string) {}

func crashPointDirDeleted(string) {}

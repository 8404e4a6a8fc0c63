package kube

import (
	"errors"
	"log/slog"
)

// ReportedError is the error of a transport whose owner has logged the cause. All requests fail
// with it, and callers log it at debug level only.
type ReportedError struct{ Err error }

func (e ReportedError) Error() string { return e.Err.Error() }

func (e ReportedError) Unwrap() error { return e.Err }

// LogLevel returns the level at which the caller of a request logs its error: level, or debug for a
// ReportedError.
func LogLevel(err error, level slog.Level) slog.Level {
	if errors.As(err, &ReportedError{}) {
		return slog.LevelDebug
	}
	return level
}

package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/duration"
)

// OneLine returns the text as one line without control characters: output of programs and manifests
// must not be able to control the terminal.
func OneLine(s string) string {
	printable := func(r rune) rune {
		if unicode.IsPrint(r) || r == ' ' {
			return r
		}
		return utf8.RuneError
	}
	return strings.Map(printable, strings.Join(strings.Fields(s), " "))
}

// ByteSize formats a number of bytes with a binary unit.
func ByteSize(n int64) string {
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	v, unit := float64(n), ""
	for _, unit = range []string{"KiB", "MiB", "GiB", "TiB"} {
		if v /= 1 << 10; v < 1000 {
			break
		}
	}
	return fmt.Sprintf("%.1f %s", v, unit)
}

// RoundDuration rounds to about three digits.
func RoundDuration(d time.Duration) time.Duration {
	switch {
	case d >= time.Minute:
		return d.Round(time.Second)
	case d >= time.Second:
		return d.Round(10 * time.Millisecond)
	case d >= 10*time.Millisecond:
		return d.Round(time.Millisecond)
	default:
		return d.Round(10 * time.Microsecond)
	}
}

// At formats a time of day, with the date if that is not today.
func At(t, now time.Time, zone *time.Location) string {
	t = t.In(zone)
	if t.Format(time.DateOnly) != now.In(zone).Format(time.DateOnly) {
		return t.Format(time.DateTime)
	}
	return t.Format(time.TimeOnly)
}

// HeldFor formats the duration of a condition of the node, as " (for 5m)", or returns "" if it is
// unknown.
func HeldFor(since, now time.Time) string {
	if since.IsZero() {
		return ""
	}
	return fmt.Sprintf(" (for %s)", duration.HumanDuration(now.Sub(since)))
}

// roundUp rounds a remaining time up to seconds, so that it is never "in 0s".
func roundUp(d time.Duration) time.Duration { return (d + time.Second - 1).Truncate(time.Second) }

// count returns the number with its noun, of which many is the plural.
func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// sentence makes a text end with exactly one full stop.
func sentence(text string) string { return strings.TrimRight(text, ". ") + "." }

func parenthesis(text string) string {
	if text == "" {
		return ""
	}
	return " (" + text + ")"
}

// Truncate cuts a text to most characters, with an ellipsis at its end.
func Truncate(text string, most int) string {
	if r := []rune(text); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return text
}

func joinNonEmpty(sep string, parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(p string) bool { return p == "" }), sep)
}

// joinMost joins the first most names, and counts the others.
func joinMost(names []string, most int, others func(n int) string) string {
	if len(names) > most {
		names = append(slices.Clone(names[:most]), others(len(names)-most))
	}
	return strings.Join(names, ", ")
}

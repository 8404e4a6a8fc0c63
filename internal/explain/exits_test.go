package explain

import (
	"testing"

	"berth/internal/record/journal"
)

func TestExitText(t *testing.T) {
	for want, c := range map[string]journal.End{
		"ended with code 0":                                     {Reason: "Completed"},
		"exited with code 3":                                    {ExitCode: 3, Reason: "Error"},
		"exited with code 3 (Odd)":                              {ExitCode: 3, Reason: "Odd"},
		"was ended by SIGTERM (exit code 143)":                  {ExitCode: 143, Reason: "Error"},
		"exited with code 255":                                  {ExitCode: 255, Reason: "Error"},
		"could not be started (StartError: exec: no such file)": {ExitCode: 128, Reason: "StartError", Message: "exec:\nno such file"},
		"ended unseen (ContainerStatusUnknown)":                 {ExitCode: 137, Reason: "ContainerStatusUnknown"},
	} {
		if got := exitText(c.ExitCode, c.Reason, c.Message); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

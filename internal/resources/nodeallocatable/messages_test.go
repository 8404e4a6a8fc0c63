package nodeallocatable

import (
	"os"
	"testing"

	"berth/internal/record/events/messagestest"
)

// The tests of the package produce each of its messages that programs match.
func TestMain(m *testing.M) { os.Exit(messagestest.Main(m, "internal/resources/nodeallocatable")) }

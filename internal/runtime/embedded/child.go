package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// Hidden commands that berth runs as child processes: they need much memory for a short time, which
// the child's exit releases.
const (
	childUnpack = "__unpack" // BUNDLES HASH [FILE]
	childLoad   = "__load"   // SOCKET BUNDLE SNAPSHOTTER
)

// RunChild runs a hidden command if args (as os.Args) name one, and returns the exit code. The main
// function of a program that uses Runtime must call it first.
func RunChild(args []string) (handled bool, exitCode int) {
	if len(args) < 2 {
		return false, 0
	}
	var err error
	switch args = args[1:]; args[0] {
	case childUnpack:
		err = unpackChild(args[1:])
	case childLoad:
		err = loadChild(args[1:])
	default:
		return false, 0
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return true, 1
	}
	return true, 0
}

// child runs this program with a hidden command. The error contains the child's stderr.
func child(ctx context.Context, args ...string) error {
	// The link refers to the running program, even if its file was replaced or removed.
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Args[0] = "berth"
	cmd.Dir = "/"
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		if output := strings.TrimSpace(stderr.String()); output != "" {
			return errors.New(output)
		}
		return fmt.Errorf("berth %s: %w", args[0], err)
	}
	return nil
}

func unpackChild(args []string) error {
	if len(args) < 2 || len(args) > 3 {
		return errors.New("arguments: BUNDLES HASH [FILE]")
	}
	file := ""
	if len(args) == 3 {
		file = args[2]
	}
	blob, err := openBlob(file, args[1])
	if err != nil {
		return err
	}
	return errors.Join(unpack(blob, args[0], args[1]), blob.Close())
}

func loadChild(args []string) error {
	if len(args) != 3 {
		return errors.New("arguments: SOCKET BUNDLE SNAPSHOTTER")
	}
	return loadImages(context.Background(), args[0], args[1], args[2])
}

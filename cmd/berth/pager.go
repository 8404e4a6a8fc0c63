package main

import (
	"cmp"
	"io"
	"os"
	"os/exec"

	"golang.org/x/term"
)

// widthOf returns the width of a terminal in columns, else screenWidth.
func widthOf(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
			return width
		}
	}
	return screenWidth
}

// paged pipes the output of write to $PAGER, or to less, if w is a terminal and the program exists.
// Otherwise it writes to w.
func paged(w io.Writer, write func(io.Writer) error) error {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return write(w)
	}
	pager := exec.Command("sh", "-c", cmp.Or(os.Getenv("PAGER"), "less -FRSX"))
	if os.Getenv("PAGER") == "" {
		if _, err := exec.LookPath("less"); err != nil {
			return write(w)
		}
	}
	pager.Stdout, pager.Stderr = f, os.Stderr
	in, err := pager.StdinPipe()
	if err != nil {
		return write(w)
	}
	if err := pager.Start(); err != nil {
		return write(w)
	}
	// A write fails if the user quits the pager early, which is not an error.
	_ = write(in)
	_ = in.Close()
	return pager.Wait()
}

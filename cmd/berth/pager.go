package main

import (
	"cmp"
	"io"
	"os"
	"os/exec"

	"golang.org/x/term"
)

// widthOf is how many columns there are to write to: a terminal's, else screenWidth.
func widthOf(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
			return width
		}
	}
	return screenWidth
}

// paged shows what write writes with $PAGER, or with less, if w is a terminal and there is such a
// program; else it goes to w as it is.
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
	// Whoever leaves the pager early has seen enough: that the rest cannot be written is no error.
	_ = write(in)
	_ = in.Close()
	return pager.Wait()
}

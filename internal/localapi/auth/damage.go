package auth

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"berth/internal/checkpoint"
)

// keyFiles are the key files that have no copy, with their checks and the consequence of a loss.
var keyFiles = []struct {
	name  string
	check func(path string) error
	means string
}{
	{"ca.pem", func(path string) error {
		pair, err := readPair(path, newAuthority)
		if err != nil {
			return err
		}
		return checkCA(path, pair)
	}, "kubeconfigs from before are refused (make new ones with berth kubeconfig)"},
	{"tokens.pem", func(path string) error {
		content, err := readBounded(path)
		if err == nil {
			_, err = decodeKey(content)
		}
		return err
	}, "tokens of service accounts from before are refused"},
}

// SetAsideDamaged sets damaged key files of the directory aside, so that new keys are created. No
// Authority or Tokens may be open: it would continue with the old keys.
func SetAsideDamaged(dir string, log *slog.Logger) error {
	return locked(dir, func() error {
		for _, f := range keyFiles {
			path := filepath.Join(dir, f.name)
			err := f.check(path)
			switch {
			case err == nil || errors.Is(err, fs.ErrNotExist):
				continue
			case !isDamage(err):
				return err
			}
			aside, moved := checkpoint.SetAside(path)
			if moved != nil {
				return fmt.Errorf("%w; %w", err, moved)
			}
			log.Error("A key of the local API is damaged, and a new one is made", "path", path, "aside", aside, "consequence", f.means, "err", err)
		}
		return nil
	})
}

// isDamage reports whether the error shows that the key file is damaged for good. A file that
// cannot be read, for a failing disk or a lack of memory, may be intact; a new authority would
// invalidate all kubeconfigs for nothing.
func isDamage(err error) bool {
	var read *fs.PathError
	return !errors.As(err, &read) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EISDIR)
}

// Damaged reports the damaged key files that were set aside, and the consequences; nil if there is
// none.
func Damaged(dir string) error {
	var errs []error
	for _, f := range keyFiles {
		path := filepath.Join(dir, f.name)
		aside := path + checkpoint.AsideSuffix
		if _, err := os.Lstat(aside); err == nil {
			errs = append(errs, fmt.Errorf("%s was damaged, and a new key is in use: %s; the damaged file is kept as %s (remove it when you no longer need it)",
				path, f.means, aside))
		}
	}
	return errors.Join(errs...)
}

package certs

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"berth/internal/checkpoint"
)

// Store is a directory with the certificates and keys of one purpose, with the kubelet's file
// names: each pair is a file <prefix>-<time>.pem, and <prefix>-current.pem links to the current
// one. The previous pair is retained, older ones are deleted.
type Store struct{ dir, prefix string }

// NewStore returns the store of the pairs <dir>/<prefix>-*.pem.
func NewStore(dir, prefix string) *Store { return &Store{dir: dir, prefix: prefix} }

// Path returns the link to the current pair. A kubeconfig may name it as client-certificate and
// client-key.
func (s *Store) Path() string { return filepath.Join(s.dir, s.prefix+"-current.pem") }

// Read returns the current pair; fs.ErrNotExist if there is none.
func (s *Store) Read() (*tls.Certificate, error) { return readPair(s.Path(), s.Path()) }

// Write stores a pair and makes it the current one: certificates in PEM form, and their key.
func (s *Store) Write(certificates []byte, key crypto.PrivateKey, now time.Time) (*tls.Certificate, error) {
	block, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(certificates, pem.EncodeToMemory(block))
	if err != nil {
		return nil, fmt.Errorf("the certificate does not fit its key: %w", err)
	}
	before, err := os.Readlink(s.Path())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return nil, err
	}
	name := s.prefix + "-" + now.Format("2006-01-02-15-04-05") + ".pem"
	if err := checkpoint.Write(filepath.Join(s.dir, name), 0o600, append(certificates, pem.EncodeToMemory(block)...)); err != nil {
		return nil, err
	}
	link := s.Path() + ".new"
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := os.Symlink(name, link); err != nil {
		return nil, err
	}
	if err := os.Rename(link, s.Path()); err != nil {
		return nil, err
	}
	return &pair, s.prune(name, filepath.Base(before))
}

// adopt stores a pair from another place and makes it the current one.
func (s *Store) adopt(pair *tls.Certificate, now time.Time) error {
	var certificates []byte
	for _, der := range pair.Certificate {
		certificates = append(certificates, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	_, err := s.Write(certificates, pair.PrivateKey, now)
	return err
}

// prune deletes all pairs except the two named ones.
func (s *Store) prune(keep ...string) error {
	paths, err := filepath.Glob(filepath.Join(s.dir, s.prefix+"-[0-9]*.pem"))
	errs := []error{err}
	for _, path := range paths {
		if name := filepath.Base(path); name != keep[0] && name != keep[1] {
			errs = append(errs, os.Remove(path))
		}
	}
	return errors.Join(errs...)
}

// pendingPath returns the key file of a pending request: a restarted agent continues with the same
// request.
func (s *Store) pendingPath() string { return filepath.Join(s.dir, s.prefix+".key.tmp") }

// pendingKey returns the key of the pending request, or generates one.
func (s *Store) pendingKey() (*ecdsa.PrivateKey, error) {
	if b, err := readPEM(s.pendingPath()); err == nil {
		if block, _ := pem.Decode(b); block != nil {
			if parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes); err == nil {
				if key, ok := parsed.(*ecdsa.PrivateKey); ok {
					return key, nil
				}
			}
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	block, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return nil, err
	}
	return key, checkpoint.Write(s.pendingPath(), 0o600, pem.EncodeToMemory(block))
}

// forgetPending deletes the key, so that the next request is a new one.
func (s *Store) forgetPending() error { return checkpoint.Remove(s.pendingPath()) }

func encodeKey(key crypto.PrivateKey) (*pem.Block, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return &pem.Block{Type: "PRIVATE KEY", Bytes: der}, nil
}

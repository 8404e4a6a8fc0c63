package offlinecache

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"berth/internal/checkpoint"
)

const (
	// keyLength is the length of the key in bytes: AES-256.
	keyLength = 32
	keyFile   = "key"
	keyMode   = 0o600
)

// errNoKey means that nothing was encrypted yet, or the key is lost.
var errNoKey = errors.New("the key is not there")

// vault encrypts with AES-256 in Galois/counter mode (NIST SP 800-38D), with a random nonce of 96
// bits before each text. The key is stored in a file. It is not safe for concurrent use.
type vault struct {
	dir  string
	aead cipher.AEAD // nil until the key has been read or generated
}

func (v *vault) path() string { return filepath.Join(v.dir, keyFile) }

// open reads the key. A key that others can read or write is rejected.
func (v *vault) open() error {
	if v.aead != nil {
		return nil
	}
	f, err := os.OpenFile(v.path(), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", v.path(), errNoKey)
	}
	if err != nil {
		return fmt.Errorf("the key of cached Secrets: %w", err)
	}
	defer f.Close()
	key, err := readKey(f)
	if err != nil {
		return fmt.Errorf("the key %s is rejected: %w; fix it, or remove the file and the entries that it encrypts", v.path(), err)
	}
	return v.use(key)
}

// readKey reads the key after it has validated type, mode, owner and size of the file.
func readKey(f *os.File) ([]byte, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	uid, err := ownerOf(f)
	if err != nil {
		return nil, err
	}
	switch {
	case !st.Mode().IsRegular():
		return nil, fmt.Errorf("it is no file, but %v", st.Mode().Type())
	case st.Mode().Perm() != keyMode:
		return nil, fmt.Errorf("its mode is %04o, and must be %04o", st.Mode().Perm(), keyMode)
	case uid != os.Geteuid():
		return nil, fmt.Errorf("it belongs to user %d, and must belong to user %d", uid, os.Geteuid())
	case st.Size() != keyLength:
		return nil, fmt.Errorf("it has %d bytes, and must have %d", st.Size(), keyLength)
	}
	key := make([]byte, keyLength)
	if _, err := f.ReadAt(key, 0); err != nil {
		return nil, err
	}
	return key, nil
}

func ownerOf(f *os.File) (int, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, err
	}
	return int(st.Uid), nil
}

// ready reads the key, or generates it if there is none.
func (v *vault) ready() error {
	err := v.open()
	if !errors.Is(err, errNoKey) {
		return err
	}
	if err := os.MkdirAll(v.dir, 0o700); err != nil {
		return fmt.Errorf("the key of cached Secrets: %w", err)
	}
	key := make([]byte, keyLength)
	_, _ = rand.Read(key) // it never fails
	if err := checkpoint.Write(v.path(), keyMode, key); err != nil {
		return err
	}
	return v.use(key)
}

func (v *vault) use(key []byte) error {
	block, err := aes.NewCipher(key)
	if err == nil {
		v.aead, err = cipher.NewGCM(block)
	}
	return err
}

// seal encrypts the text. It can be decrypted only with the same identity.
func (v *vault) seal(text, identity []byte) []byte {
	nonce := make([]byte, v.aead.NonceSize(), v.aead.NonceSize()+len(text)+v.aead.Overhead())
	_, _ = rand.Read(nonce) // it never fails
	return v.aead.Seal(nonce, nonce, text, identity)
}

// unseal decrypts the result of seal.
func (v *vault) unseal(sealed, identity []byte) ([]byte, error) {
	n := v.aead.NonceSize()
	if len(sealed) < n {
		return nil, errors.New("it is too short to be encrypted")
	}
	text, err := v.aead.Open(nil, sealed[:n], sealed[n:], identity)
	if err != nil {
		return nil, fmt.Errorf("it was encrypted by another key, or was changed: %w", err)
	}
	return text, nil
}

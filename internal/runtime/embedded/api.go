package embedded

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
)

// apiHash is the hash of the bundle of the local API's programs, as bundleHash is the runtime's.
var apiHash string

var errNoAPI = errors.New("this build of berth brings neither kubectl nor the program of the local API along; build it with make build")

// APIProgram returns the path of the program that judges what is written to a local API, and is
// kubectl if it is called so. It is unpacked below the folder, an absolute path, when it is asked
// for first, which takes a second; then other versions of it are removed that no process uses.
// RunChild must be called by the main function.
func APIProgram(ctx context.Context, folder string) (path string, err error) {
	if apiHash == "" || !hasBlob {
		return "", errNoAPI
	}
	fresh, err := ensureUnpacked(ctx, folder, apiHash, "")
	if err != nil {
		return "", fmt.Errorf("programs of the local API: %w", err)
	}
	if fresh {
		_ = removeOtherPrograms(folder) // what stays takes room, and goes with the next version
	}
	return filepath.Join(folder, folderName(apiHash), "bin", "registry"), nil
}

// APIDocuments is the file that the program has written of itself (discovery, OpenAPI), "" for a
// build without it.
func APIDocuments() string { return apiDocuments }

// removeOtherPrograms removes other versions when nobody unpacks one.
func removeOtherPrograms(folder string) error {
	lock, err := lockFolder(folder)
	if err != nil {
		return err
	}
	defer lock.Close()
	_, err = removeOthers(folder, folderName(apiHash), "/proc")
	return err
}

// APIFolder is the folder of APIProgram in an agent's root directory.
func APIFolder(rootDir string) string { return filepath.Join(rootDir, "programs") }

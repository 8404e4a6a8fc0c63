package embedded

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
)

// apiHash is the bundle hash of the local API's programs, as bundleHash is the runtime's.
var apiHash string

var errNoAPI = errors.New("this build of berth brings neither kubectl nor the program of the local API along; build it with make build")

// APIProgram returns the path of the API writer program of the local API, which acts as kubectl if
// invoked by that name. The first call unpacks it below folder, an absolute path, which takes about
// a second, and removes other versions that no process uses. The main function must call RunChild.
func APIProgram(ctx context.Context, folder string) (path string, err error) {
	if apiHash == "" || !hasBlob {
		return "", errNoAPI
	}
	fresh, err := ensureUnpacked(ctx, folder, apiHash, "")
	if err != nil {
		return "", fmt.Errorf("programs of the local API: %w", err)
	}
	if fresh {
		_ = removeOtherPrograms(folder) // a remainder takes disk space until the next version
	}
	return filepath.Join(folder, folderName(apiHash), "bin", "apiserver"), nil
}

// APIDocuments returns the path of the program's discovery and OpenAPI documents, "" for a build
// without them.
func APIDocuments() string { return apiDocuments }

// removeOtherPrograms removes other versions while no process unpacks one.
func removeOtherPrograms(folder string) error {
	lock, err := lockFolder(folder)
	if err != nil {
		return err
	}
	defer lock.Close()
	_, err = removeOthers(folder, folderName(apiHash), "/proc")
	return err
}

// APIFolder returns the directory for APIProgram in an agent's root directory.
func APIFolder(rootDir string) string { return filepath.Join(rootDir, "programs") }

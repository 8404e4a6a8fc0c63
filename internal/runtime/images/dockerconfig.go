package images

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// DockerConfigFiles returns the paths of the node's docker config, in search order; the first
// readable file is used. The directories are those of the Kubernetes documentation ("Images",
// configuring nodes) without the working directory, which is meaningless for a service.
func DockerConfigFiles(rootDir string) []string {
	dirs := []string{rootDir, "/"}
	docker := []string{rootDir, "/.docker"}
	if home, err := os.UserHomeDir(); err == nil && home != "/" {
		dirs = []string{rootDir, home, "/"}
		docker = []string{rootDir, filepath.Join(home, ".docker"), "/.docker"}
	}
	var files []string
	for _, dir := range docker {
		files = append(files, filepath.Join(dir, "config.json"))
	}
	for _, dir := range dirs {
		files = append(files, filepath.Join(dir, ".dockercfg"))
	}
	return files
}

// readDockerConfig returns the auths of the first readable file, and the errors of those before it.
func readDockerConfig(files []string) (map[string]auth, error) {
	var errs []error
	for _, file := range files {
		b, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var auths map[string]auth
		if err == nil {
			parse := parseDockerConfigJSON
			if filepath.Base(file) == ".dockercfg" {
				parse = parseDockerCfg
			}
			auths, err = parse(b)
		}
		if err == nil {
			return auths, errors.Join(errs...)
		}
		errs = append(errs, fmt.Errorf("docker config %s: %w", file, err))
	}
	return nil, errors.Join(errs...)
}

// parseDockerConfigJSON parses the format of ~/.docker/config.json and of secrets of type
// kubernetes.io/dockerconfigjson.
func parseDockerConfigJSON(b []byte) (map[string]auth, error) {
	var doc struct {
		Auths map[string]dockerEntry `json:"auths"`
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		return nil, withoutContent(err)
	}
	return authsOf(doc.Auths)
}

// parseDockerCfg parses the older format of ~/.dockercfg and of secrets of type
// kubernetes.io/dockercfg.
func parseDockerCfg(b []byte) (map[string]auth, error) {
	var entries map[string]dockerEntry
	if err := json.Unmarshal(b, &entries); err != nil {
		return nil, withoutContent(err)
	}
	return authsOf(entries)
}

// dockerEntry is the credential of one registry. Auth is the base64 of username:password, and takes
// precedence over both.
type dockerEntry struct {
	Username      string `json:"username"`
	Password      string `json:"password"`
	Auth          string `json:"auth"`
	IdentityToken string `json:"identitytoken"`
	RegistryToken string `json:"registrytoken"`
}

func authsOf(entries map[string]dockerEntry) (map[string]auth, error) {
	auths := make(map[string]auth, len(entries))
	for registry, e := range entries {
		a := auth{Username: e.Username, Password: e.Password, IdentityToken: e.IdentityToken, RegistryToken: e.RegistryToken}
		if e.Auth != "" {
			both, err := base64.StdEncoding.DecodeString(e.Auth)
			user, password, ok := strings.Cut(strings.TrimRight(string(both), "\x00"), ":")
			if err != nil || !ok {
				return nil, fmt.Errorf("the auth of %q is not the base64 of username:password", registry)
			}
			a.Username, a.Password = user, password
		}
		if a != (auth{}) { // docker login leaves empty entries if a credential helper stores the credentials
			auths[registry] = a
		}
	}
	return auths, nil
}

// withoutContent describes a JSON error without quoting the input: the decoder's message may
// contain a password.
func withoutContent(err error) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("is not JSON (at byte %d)", syntax.Offset)
	case errors.As(err, &kind):
		return fmt.Errorf("a value has another type than %s (at byte %d)", kind.Type, kind.Offset)
	}
	return errors.New("is not the JSON of a docker config")
}

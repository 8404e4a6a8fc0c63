package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/checkpoint"
)

// The group and version of records; older versions have the same format.
const (
	recordsGroup   = "kubelet.config.k8s.io/"
	recordsVersion = recordsGroup + "v1beta1"
	intentKind     = "ImagePullIntent"
	pulledKind     = "ImagePulledRecord"
)

// pullIntent is on disk while an image is being pulled (ImagePullIntent of
// kubelet.config.k8s.io/v1beta1).
//
// The types are declared here because the published package links component-base, which has its own
// metrics registry.
type pullIntent struct {
	metav1.TypeMeta `json:",inline"`
	Image           string `json:"image"`
}

// pulledRecord records the credentials of an image's pulls (ImagePulledRecord of
// kubelet.config.k8s.io/v1beta1).
type pulledRecord struct {
	metav1.TypeMeta `json:",inline"`
	LastUpdatedTime metav1.Time `json:"lastUpdatedTime"`
	ImageRef        string      `json:"imageRef"`
	// CredentialMapping is by the image's name without tag and digest.
	CredentialMapping map[string]pulledWith `json:"credentialMapping,omitempty"`
}

// pulledWith are the pods that may use a pulled image: every pod of the node, or those with one of
// the secrets or service accounts.
type pulledWith struct {
	KubernetesSecrets         []pullSecret         `json:"kubernetesSecrets,omitempty"`
	KubernetesServiceAccounts []pullServiceAccount `json:"kubernetesServiceAccounts,omitempty"`
	NodePodsAccessible        bool                 `json:"nodePodsAccessible,omitempty"`
}

type pullSecret struct {
	UID            string `json:"uid"`
	Namespace      string `json:"namespace"`
	Name           string `json:"name"`
	CredentialHash string `json:"credentialHash"`
}

type pullServiceAccount struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// records are the files of pull records (KEP-2535), in the kubelet's format. They are durable: an
// image whose record was lost would be treated as preloaded, which every pod may use.
type records struct {
	dir string
	// one serializes reads and writes; it holds one token.
	one chan struct{}
	// intents counts, by the name without tag and digest, the pulls whose intents are on disk. It
	// is guarded by the token.
	intents map[string]int
	// files counts them by the whole name.
	files map[string]int
	// begun counts the started pulls.
	begun int
}

func newRecords(dir string) *records {
	return &records{dir: dir, one: make(chan struct{}, 1), intents: map[string]int{}, files: map[string]int{}}
}

const (
	pullingDir = "pulling"
	pulledDir  = "pulled"
)

// count returns the number of records in a directory.
func (s *records) count(folder string) int {
	if s == nil {
		return 0
	}
	files, _ := os.ReadDir(filepath.Join(s.dir, folder)) // none before the first is written
	return len(files)
}

func (s *records) intentFile(image string) string {
	return filepath.Join(s.dir, pullingDir, fileOf(image))
}

func (s *records) pulledFile(ref string) string { return filepath.Join(s.dir, pulledDir, fileOf(ref)) }

func fileOf(name string) string {
	sum := sha256.Sum256([]byte(name))
	return "sha256-" + hex.EncodeToString(sum[:])
}

func (s *records) lock()   { s.one <- struct{}{} }
func (s *records) unlock() { <-s.one }

// begin persists the intent before the image is pulled.
func (s *records) begin(n names) error {
	s.lock()
	defer s.unlock()
	intent := pullIntent{TypeMeta: metav1.TypeMeta{Kind: intentKind, APIVersion: recordsVersion}, Image: n.image}
	if s.files[n.image] == 0 {
		if err := writeRecord(s.intentFile(n.image), intent); err != nil {
			return fmt.Errorf("record that image %q is being pulled: %w", n.image, err)
		}
	}
	s.files[n.image]++
	s.intents[n.repository]++
	s.begun++
	return nil
}

// end removes the intent when the last pull of the image has completed and was recorded.
func (s *records) end(n names) error {
	s.lock()
	defer s.unlock()
	if s.files[n.image]--; s.files[n.image] == 0 {
		delete(s.files, n.image)
		if err := checkpoint.Remove(s.intentFile(n.image)); err != nil {
			return err
		}
	}
	if s.intents[n.repository]--; s.intents[n.repository] == 0 {
		delete(s.intents, n.repository)
	}
	return nil
}

// pulling reports whether an image of the repository is being pulled, or was pulled without a
// recorded result.
func (s *records) pulling(n names) bool {
	s.lock()
	defer s.unlock()
	return s.intents[n.repository] > 0
}

// find returns the record of an image, or nil if it has none. For an unreadable record, it returns
// one without credentials.
func (s *records) find(ref string) (*pulledRecord, error) {
	s.lock()
	defer s.unlock()
	return s.read(ref)
}

func (s *records) read(ref string) (*pulledRecord, error) {
	none := &pulledRecord{ImageRef: ref}
	b, err := os.ReadFile(s.pulledFile(ref))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return none, err
	}
	var r pulledRecord
	if err := json.Unmarshal(b, &r); err != nil {
		return none, fmt.Errorf("record of image %s: %w", ref, err)
	}
	if r.Kind != pulledKind || !strings.HasPrefix(r.APIVersion, recordsGroup) || r.ImageRef != ref {
		return none, fmt.Errorf("record of image %s: %s is of kind %s, version %s, image %s", ref, s.pulledFile(ref), r.Kind, r.APIVersion, r.ImageRef)
	}
	return &r, nil
}

// add records that the image was pulled by the name of the repository with the credentials; with
// none, only that it was pulled. An unreadable record is replaced.
func (s *records) add(ref, repository string, with pulledWith) error {
	s.lock()
	defer s.unlock()
	old, err := s.read(ref)
	if old == nil {
		old = &pulledRecord{}
	}
	known, ok := old.CredentialMapping[repository]
	merged := mergePulledWith(known, with)
	if ok && err == nil && merged.equal(known) {
		return nil
	}
	mapping := map[string]pulledWith{}
	maps.Copy(mapping, old.CredentialMapping)
	if !merged.equal(pulledWith{}) {
		mapping[repository] = merged
	}
	return writeRecord(s.pulledFile(ref), pulledRecord{
		TypeMeta: metav1.TypeMeta{Kind: pulledKind, APIVersion: recordsVersion}, LastUpdatedTime: metav1.Now(),
		ImageRef: ref, CredentialMapping: mapping,
	})
}

// mergePulledWith merges the known and the new credentials; of each secret it retains the newest
// credential, and of service accounts with the same name the newest: the older one was deleted.
func mergePulledWith(known, with pulledWith) pulledWith {
	if known.NodePodsAccessible || with.NodePodsAccessible {
		return pulledWith{NodePodsAccessible: true}
	}
	merged := pulledWith{KubernetesServiceAccounts: slices.Clone(with.KubernetesServiceAccounts), KubernetesSecrets: slices.Clone(with.KubernetesSecrets)}
	for _, k := range known.KubernetesServiceAccounts {
		if !slices.ContainsFunc(with.KubernetesServiceAccounts, k.replacedBy) {
			merged.KubernetesServiceAccounts = append(merged.KubernetesServiceAccounts, k)
		}
	}
	slices.SortFunc(merged.KubernetesServiceAccounts, func(a, b pullServiceAccount) int {
		return slices.Compare([]string{a.Namespace, a.Name, a.UID}, []string{b.Namespace, b.Name, b.UID})
	})
	for _, k := range known.KubernetesSecrets {
		if !slices.ContainsFunc(with.KubernetesSecrets, k.replacedBy) {
			merged.KubernetesSecrets = append(merged.KubernetesSecrets, k)
		}
	}
	slices.SortFunc(merged.KubernetesSecrets, func(a, b pullSecret) int {
		return slices.Compare([]string{a.Namespace, a.Name, a.UID}, []string{b.Namespace, b.Name, b.UID})
	})
	return merged
}

// replacedBy reports whether both are of the same object. Secrets of manifests have no UID and are
// compared by name.
func (s pullSecret) replacedBy(next pullSecret) bool {
	return s.UID == next.UID && s.Namespace == next.Namespace && s.Name == next.Name
}

func (a pullServiceAccount) replacedBy(next pullServiceAccount) bool {
	return a.Namespace == next.Namespace && a.Name == next.Name
}

func (w pulledWith) equal(other pulledWith) bool {
	return w.NodePodsAccessible == other.NodePodsAccessible && slices.Equal(w.KubernetesSecrets, other.KubernetesSecrets) &&
		slices.Equal(w.KubernetesServiceAccounts, other.KubernetesServiceAccounts)
}

// recover updates the records after an interrupted agent: present images with an intent get a
// record without credentials, so that pods must prove access, and records of missing images are
// removed. An intent whose image cannot be inspected remains. present returns the ref of a named
// image, "" if it is not present; all returns the refs of all images.
func (s *records) recover(ctx context.Context, present func(context.Context, string) (string, error), all func(context.Context) (map[string]bool, error)) error {
	for _, dir := range []string{pullingDir, pulledDir} {
		if err := os.MkdirAll(filepath.Join(s.dir, dir), 0o700); err != nil {
			return err
		}
	}
	var errs []error
	files, err := os.ReadDir(filepath.Join(s.dir, pullingDir))
	if err != nil {
		return err
	}
	for _, f := range files {
		errs = append(errs, s.settle(ctx, filepath.Join(s.dir, pullingDir, f.Name()), present))
	}
	there, err := all(ctx)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	return errors.Join(append(errs, s.prune(there, 0))...)
}

// settle resolves the intent of an earlier agent.
func (s *records) settle(ctx context.Context, file string, present func(context.Context, string) (string, error)) error {
	b, err := os.ReadFile(file)
	var intent pullIntent
	if err == nil {
		err = json.Unmarshal(b, &intent)
	}
	if err == nil && fileOf(intent.Image) != filepath.Base(file) {
		err = fmt.Errorf("is not that of image %q", intent.Image)
	}
	if err != nil {
		// Intents are written atomically, so this is not ours; its image is unknown.
		return errors.Join(fmt.Errorf("pull intent %s: %w", file, err), checkpoint.Remove(file))
	}
	ref, err := present(ctx, intent.Image)
	if err == nil && ref != "" {
		var n names
		if n, err = parseName(intent.Image); err == nil {
			err = s.add(ref, n.repository, pulledWith{})
		}
	}
	if err != nil {
		if n, nerr := parseName(intent.Image); nerr == nil {
			s.lock()
			s.files[n.image]++
			s.intents[n.repository]++
			s.unlock()
		}
		return fmt.Errorf("pull intent of image %q is left: %w", intent.Image, err)
	}
	return checkpoint.Remove(file)
}

// quiet reports whether no image is being pulled, and the number of started pulls.
func (s *records) quiet() (begun int, quiet bool) {
	s.lock()
	defer s.unlock()
	return s.begun, len(s.files) == 0
}

// prune removes the records of images not in there. It does nothing if more pulls than begun were
// started: their images may be missing in there.
func (s *records) prune(there map[string]bool, begun int) error {
	s.lock()
	defer s.unlock()
	if s.begun != begun {
		return nil
	}
	keep := map[string]bool{}
	for ref := range there {
		keep[fileOf(ref)] = true
	}
	files, err := os.ReadDir(filepath.Join(s.dir, pulledDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, f := range files {
		if !keep[f.Name()] {
			err = errors.Join(err, os.RemoveAll(filepath.Join(s.dir, pulledDir, f.Name())))
		}
	}
	return err
}

func writeRecord(path string, content any) error {
	b, err := json.Marshal(content)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return checkpoint.Write(path, 0o600, b)
}

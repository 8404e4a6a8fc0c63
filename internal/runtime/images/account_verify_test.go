package images_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/runtime/images"
)

// accounts are the UIDs of service accounts, by name.
type accounts map[string]types.UID

func (a accounts) ServiceAccount(_ context.Context, p *v1.Pod) (*v1.ServiceAccount, error) {
	uid, ok := a[p.Spec.ServiceAccountName]
	if !ok {
		return nil, errors.New("no answer")
	}
	return &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Spec.ServiceAccountName, UID: uid}}, nil
}

func (a accounts) ImageToken(context.Context, *v1.Pod, *v1.ServiceAccount, string) (string, error) {
	return "token", nil
}

// runAs lets a new pod with the service account use the private image.
func (s *site) runAs(account string, policy v1.PullPolicy) string {
	s.t.Helper()
	s.pods++
	p := podOf(types.UID(fmt.Sprint(s.pods)))
	p.Spec.ServiceAccountName = account
	r, err := s.Ensure(s.t.Context(), p, container("c", private, policy), nil, "")
	saw(err)
	var e *images.Error
	switch {
	case errors.As(err, &e):
		return e.Reason
	case err != nil:
		return err.Error()
	case r.Pulled:
		return "pulled"
	}
	return "present"
}

// What was pulled with a service account's credentials is for pods with that service account, and
// no others.
func TestCredentialsOfServiceAccounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, known := newSite(t), accounts{"robot": "1", "other": "2"}
		bin := t.TempDir()
		files := map[string]string{
			"provider": `#!/bin/sh
cat > /dev/null
echo '{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1","cacheKeyType":"Global","auth":{"registry.example":{"username":"jane","password":"right"}}}'
`,
			"config.yaml": `apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: provider
  matchImages: ["registry.example"]
  defaultCacheDuration: 1h
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  tokenAttributes: {serviceAccountTokenAudience: a, cacheType: ServiceAccount, requireServiceAccount: true}
`,
		}
		for name, content := range files {
			if err := os.WriteFile(filepath.Join(bin, name), []byte(content), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		var err error
		if s.conf.Providers, err = images.LoadProviders(bin+"/config.yaml", bin, known, nil); err != nil {
			t.Fatal(err)
		}
		s.restart()
		s.want("the first", "pulled", s.runAs("robot", v1.PullIfNotPresent))
		s.want("the same account", "present", s.runAs("robot", v1.PullNever))
		s.want("no account", "ErrImageNeverPull", s.runAs("", v1.PullNever))
		s.want("another account", "ErrImageNeverPull", s.runAs("other", v1.PullNever))
		s.want("another account pulls", "pulled", s.runAs("other", v1.PullIfNotPresent))
		s.want("a secret with the same credential", "ErrImageNeverPull", s.run(private, v1.PullNever, "good"))
		s.restart()
		s.want("the same account, another agent", "present", s.runAs("robot", v1.PullNever))
		s.want("the other account, too", "present", s.runAs("other", v1.PullNever))
		record := s.files()["pulled id:"+private]
		want := `"kubernetesServiceAccounts":[{"uid":"2","namespace":"default","name":"other"},{"uid":"1","namespace":"default","name":"robot"}]`
		if !strings.Contains(record, want) || strings.Contains(record, "nodePods") {
			t.Errorf("record %s, want in it %s", record, want)
		}

		known["robot"] = "3"
		s.want("an account of the same name", "ErrImageNeverPull", s.runAs("robot", v1.PullNever))
		s.want("which pulls", "pulled", s.runAs("robot", v1.PullIfNotPresent))
		if record := s.files()["pulled id:"+private]; strings.Contains(record, `"uid":"1"`) || !strings.Contains(record, `"uid":"3"`) {
			t.Errorf("record %s, want the account that is there", record)
		}
		delete(known, "robot")
		s.want("an account that cannot be read", "ErrImageNeverPull", s.runAs("robot", v1.PullNever))
		s.conf.Providers = nil
		s.restart()
		s.want("without the provider", "ErrImageNeverPull", s.runAs("other", v1.PullNever))
	})
}

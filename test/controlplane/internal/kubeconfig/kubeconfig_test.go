package kubeconfig

import (
	"testing"

	"berth/test/controlplane/internal/pki"
)

func TestMarshal(t *testing.T) {
	got := string(Marshal("https://127.0.0.1:6443", []byte("authority"), pki.Pair{Cert: []byte("cert"), Key: []byte("key")}))
	const want = `{
  "apiVersion": "v1",
  "kind": "Config",
  "clusters": [
    {
      "name": "berth",
      "cluster": {
        "server": "https://127.0.0.1:6443",
        "certificate-authority-data": "YXV0aG9yaXR5"
      }
    }
  ],
  "users": [
    {
      "name": "berth",
      "user": {
        "client-certificate-data": "Y2VydA==",
        "client-key-data": "a2V5"
      }
    }
  ],
  "contexts": [
    {
      "name": "berth",
      "context": {
        "cluster": "berth",
        "user": "berth"
      }
    }
  ],
  "current-context": "berth"
}
`
	if got != want {
		t.Errorf("Marshal = %s\nwant %s", got, want)
	}
}

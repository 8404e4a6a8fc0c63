package plane

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// The test program is a fake of every component. It speaks TLS with the files that the component is
// told to use and takes clients of the authority that it is told to trust, but knows only what the
// probes ask for. What it does beyond that is said by the argument --fake=…. SIGTERM ends it as it
// ends every program that says nothing else.
const (
	fakeArg     = "--fake="
	fakeFails   = "fails"     // ends at once with a message
	fakeIsStuck = "is-stuck"  // never gets ready
	fakeDies    = "dies-late" // ends by itself when it is asked for /die
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && slices.Contains(Components, os.Args[1]) {
		if err := fake(os.Args[1], os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func fake(component string, args []string) error {
	flags := map[string]string{}
	for _, arg := range args {
		name, value, _ := strings.Cut(arg, "=")
		flags[name] = value
	}
	does := flags[strings.TrimSuffix(fakeArg, "=")]
	if does == fakeFails {
		return errors.New("this is a fake failure")
	}
	var address, cert, key, authority string
	answers := map[string]bool{}
	switch component {
	case etcd:
		u, err := url.Parse(flags["--listen-client-urls"])
		if err != nil {
			return err
		}
		address, cert, key, authority = u.Host, flags["--cert-file"], flags["--key-file"], flags["--trusted-ca-file"]
		answers["/health"] = true
	case apiServer:
		address, cert, key, authority = "127.0.0.1:"+flags["--secure-port"], flags["--tls-cert-file"], flags["--tls-private-key-file"], flags["--client-ca-file"]
		answers["/readyz"], answers["/api/v1/namespaces/default/serviceaccounts/default"] = true, true
	default:
		return syscall.Pause()
	}
	roots := x509.NewCertPool()
	pem, err := os.ReadFile(authority)
	if err != nil {
		return err
	}
	roots.AppendCertsFromPEM(pem)
	ended := make(chan error, 2)
	server := http.Server{
		Addr:      address,
		TLSConfig: &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case does == fakeDies && r.URL.Path == "/die":
				ended <- errors.New("this is a fake death")
			case does == fakeIsStuck || !answers[r.URL.Path]:
				http.Error(w, "this is a fake refusal", http.StatusServiceUnavailable)
			}
		}),
	}
	go func() { ended <- server.ListenAndServeTLS(cert, key) }()
	return <-ended
}

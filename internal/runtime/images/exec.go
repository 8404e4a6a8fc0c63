package images

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	credentialprovider "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
)

const (
	// providerTimeout bounds one run of a plugin.
	providerTimeout = time.Minute
	// maxAnswer is the maximum size of a plugin's output, in bytes.
	maxAnswer = 1 << 20
)

// exec runs the plugin: the request is its stdin, the response its stdout, both JSON.
func (pr *provider) exec(ctx context.Context, q providerRequest) (*credentialprovider.CredentialProviderResponse, error) {
	var token string
	if q.identity.token != nil {
		var err error
		if token, err = q.identity.token(ctx); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, providerTimeout, fmt.Errorf("did not answer within %v", providerTimeout))
	defer cancel()
	request, err := json.Marshal(credentialprovider.CredentialProviderRequest{
		TypeMeta: metav1.TypeMeta{Kind: "CredentialProviderRequest", APIVersion: pr.conf.APIVersion}, Image: q.image,
		ServiceAccountToken: token, ServiceAccountAnnotations: q.identity.annotations,
	})
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, pr.program, pr.conf.Args...)
	cmd.Env = os.Environ()
	for _, e := range pr.conf.Env {
		cmd.Env = append(cmd.Env, e.Name+"="+e.Value)
	}
	var out, complaints limited
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(request), &out, &complaints
	// A timeout kills the plugin's whole process group.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if output, _, _ := strings.Cut(strings.TrimSpace(hide(complaints.buffer.String(), token)), "\n"); output != "" {
			err = fmt.Errorf("%w: %.200q", err, output)
		}
		return nil, err
	}
	if out.over {
		return nil, fmt.Errorf("its answer is longer than %d bytes", maxAnswer)
	}
	return readResponse(out.buffer.Bytes(), pr.conf.APIVersion)
}

// readResponse validates a plugin's response. Its errors do not quote it.
func readResponse(b []byte, version string) (*credentialprovider.CredentialProviderResponse, error) {
	var r credentialprovider.CredentialProviderResponse
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, errors.New("its answer is not the JSON of a CredentialProviderResponse")
	}
	if r.Kind != "CredentialProviderResponse" || r.APIVersion != version {
		return nil, fmt.Errorf("its answer is a %q of version %q: must be a CredentialProviderResponse of the version that it was asked in, %s", r.Kind, r.APIVersion, version)
	}
	return &r, nil
}

// limited stores the first maxAnswer bytes. It accepts and discards the rest, so that the program
// does not block.
type limited struct {
	buffer bytes.Buffer
	over   bool
}

func (l *limited) Write(p []byte) (int, error) {
	capacity := maxAnswer - l.buffer.Len()
	if len(p) > capacity {
		l.over = true
	}
	l.buffer.Write(p[:min(capacity, len(p))])
	return len(p), nil
}

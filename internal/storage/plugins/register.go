package plugins

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"berth/internal/pod"
)

// The timeouts of GetInfo, including the connection, and of NotifyRegistrationStatus.
const (
	infoTimeout   = 10 * time.Second
	notifyTimeout = 5 * time.Second
)

// registered is a plugin that its handler has accepted.
type registered struct {
	handler        Handler
	kind           string
	name, endpoint string
}

// keepRegistered registers the plugin of the socket, with retries; when the socket is removed, it
// deregisters the plugin.
func (w *Watcher) keepRegistered(ctx context.Context, path string) {
	log, last := w.Log.With("socket", path), ""
	defer w.health.Set(path, nil)
	for delay := retries.DelayFunc(); ; {
		if ctx.Err() != nil {
			return
		}
		r, err := w.register(ctx, path)
		if err == nil {
			w.health.Set(path, nil)
			log.Info("plugin registered", "type", r.kind, "plugin", r.name, "endpoint", r.endpoint)
			w.metrics.is(path, actualState)
			<-ctx.Done()
			w.metrics.isNot(path, actualState)
			if !leaving(ctx) {
				r.handler.DeregisterPlugin(r.name, r.endpoint)
				log.Info("plugin is gone", "type", r.kind, "plugin", r.name)
			}
			return
		}
		w.health.Set(path, fmt.Errorf("%s: %w", path, err))
		if ctx.Err() == nil && err.Error() != last {
			last = err.Error()
			log.Warn("plugin not registered, which is tried again", "error", err)
		}
		if !pod.Pause(ctx, delay()) {
			return
		}
	}
}

// leaving reports whether the agent is stopping, rather than the socket removed. Plugins then stay
// registered.
func leaving(ctx context.Context) bool {
	return ctx.Err() != nil && !errors.Is(context.Cause(ctx), errSocketGone)
}

// register is one attempt.
func (w *Watcher) register(ctx context.Context, path string) (registered, error) {
	conn, err := grpc.NewClient("passthrough:///localhost",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return w.Dial(ctx, path)
		}))
	if err != nil {
		return registered{}, err
	}
	defer conn.Close()
	client := registerapi.NewRegistrationClient(conn)
	asking, cancel := context.WithTimeout(ctx, infoTimeout)
	info, err := client.GetInfo(asking, &registerapi.InfoRequest{})
	cancel()
	if err != nil {
		return registered{}, fmt.Errorf("ask the plugin what it is: %w", err)
	}
	r := registered{handler: w.Handlers[info.Type], kind: info.Type, name: info.Name, endpoint: cmp.Or(info.Endpoint, path)}
	if err := r.hand(ctx, path, info.SupportedVersions); err != nil {
		return registered{}, errors.Join(err, notify(ctx, client, &registerapi.RegistrationStatus{Error: "RegisterPlugin error -- " + err.Error()}))
	}
	if err := notify(ctx, client, &registerapi.RegistrationStatus{PluginRegistered: true}); err != nil {
		if !leaving(ctx) {
			r.handler.DeregisterPlugin(r.name, r.endpoint)
		}
		return registered{}, err
	}
	return r, nil
}

// hand passes the plugin to its handler.
func (r registered) hand(ctx context.Context, path string, versions []string) error {
	if r.handler == nil {
		return fmt.Errorf("no handler registered for plugin type: %s at socket %s", r.kind, path)
	}
	if err := r.handler.ValidatePlugin(r.name, r.endpoint, versions); err != nil {
		return fmt.Errorf("plugin validation failed with err: %w", err)
	}
	if err := r.handler.RegisterPlugin(ctx, r.name, r.endpoint, versions); err != nil {
		return fmt.Errorf("plugin registration failed with err: %w", err)
	}
	return nil
}

func notify(ctx context.Context, client registerapi.RegistrationClient, s *registerapi.RegistrationStatus) error {
	ctx, cancel := context.WithTimeout(ctx, notifyTimeout)
	defer cancel()
	if _, err := client.NotifyRegistrationStatus(ctx, s); err != nil {
		return fmt.Errorf("tell the plugin how its registration went: %w", err)
	}
	return nil
}

package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/ns"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"
)

// Exec runs CNI plugins for a runtime: this plugin in the runtime's own process, which saves the
// start of a program for each call, and any other as a program.
type Exec struct {
	invoke.Exec        // runs programs
	Own         string // the program file of this plugin, of the same version
}

// ExecPlugin runs a plugin and returns its output or error. A started call of this plugin ignores
// the cancellation of ctx: a DEL must not overtake an ADD whose caller has stopped waiting.
func (e Exec) ExecPlugin(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	command, args := e.plain(path, stdin, env)
	if args == nil || ctx.Err() != nil {
		return e.Exec.ExecPlugin(ctx, path, stdin, env)
	}
	var out bytes.Buffer
	does := funcs(&out)
	done := make(chan error)
	go func() {
		done <- inThread(func() error {
			return run(map[string]func(*skel.CmdArgs) error{"ADD": does.Add, "DEL": does.Del}[command], args)
		})
	}()
	if err := <-done; err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// plain returns command and arguments of a valid ADD or DEL. All other calls are left to the
// program, which reports what is invalid.
func (e Exec) plain(path string, stdin []byte, env []string) (string, *skel.CmdArgs) {
	if !sameFile(path, e.Own) {
		return "", nil
	}
	value := map[string]string{}
	for _, v := range env {
		name, text, _ := strings.Cut(v, "=")
		value[name] = text // of duplicates, the last one counts
	}
	command := value["CNI_COMMAND"]
	args := &skel.CmdArgs{
		ContainerID: value["CNI_CONTAINERID"], Netns: value["CNI_NETNS"], IfName: value["CNI_IFNAME"],
		Args: value["CNI_ARGS"], Path: value["CNI_PATH"], StdinData: stdin,
	}
	var config struct{ CNIVersion, Name string }
	switch {
	case command != "DEL" && (command != "ADD" || args.Netns == ""),
		args.Path == "", value["CNI_NETNS_OVERRIDE"] != "",
		utils.ValidateContainerID(args.ContainerID) != nil, utils.ValidateInterfaceName(args.IfName) != nil,
		json.Unmarshal(stdin, &config) != nil, utils.ValidateNetworkName(config.Name) != nil,
		!slices.Contains(versions.SupportedVersions(), config.CNIVersion):
		return "", nil
	}
	if isHost, err := ns.CheckNetNS(args.Netns); isHost || err != nil {
		return "", nil
	}
	return command, args
}

// inThread calls do in a dedicated thread, which exits with its goroutine if do leaves it in
// another network namespace.
func inThread(do func() error) error {
	const namespace = "/proc/thread-self/ns/net"
	runtime.LockOSThread()
	before, err := os.Stat(namespace)
	if err != nil {
		return fail(types.ErrInternal, "network namespace of the runtime: %v", err)
	}
	err = do()
	if after, failed := os.Stat(namespace); failed == nil && os.SameFile(before, after) {
		runtime.UnlockOSThread()
	}
	return err
}

func sameFile(a, b string) bool {
	fa, errA := os.Stat(a)
	fb, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(fa, fb)
}

// run calls a function of the plugin. It returns errors as the program prints them, and panics
// as errors.
func run(do func(*skel.CmdArgs) error, args *skel.CmdArgs) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fail(types.ErrInternal, "panic: %v\n%s", p, debug.Stack())
		}
	}()
	step("thread")
	err = do(args)
	var coded *types.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &coded):
		return coded
	default:
		return types.NewError(types.ErrInternal, err.Error(), "")
	}
}

package validation

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// linuxSignals and windowsSignals are the valid stop signals of a container (Lifecycle.stopSignal;
// the names are those of signal(7)).
var (
	linuxSignals = generateSignals(
		"SIGABRT", "SIGALRM", "SIGBUS", "SIGCHLD", "SIGCLD", "SIGCONT", "SIGFPE", "SIGHUP", "SIGILL", "SIGINT", "SIGIO", "SIGIOT", "SIGKILL",
		"SIGPIPE", "SIGPOLL", "SIGPROF", "SIGPWR", "SIGQUIT", "SIGSEGV", "SIGSTKFLT", "SIGSTOP", "SIGSYS", "SIGTERM", "SIGTRAP", "SIGTSTP",
		"SIGTTIN", "SIGTTOU", "SIGURG", "SIGUSR1", "SIGUSR2", "SIGVTALRM", "SIGWINCH", "SIGXCPU", "SIGXFSZ", "SIGRTMIN", "SIGRTMAX")
	windowsSignals = []v1.Signal{"SIGKILL", "SIGTERM"}
)

// generateSignals adds the numbered real-time signals, upwards from SIGRTMIN and downwards from
// SIGRTMAX.
func generateSignals(names ...v1.Signal) []v1.Signal {
	for i := 1; i <= 15; i++ {
		names = append(names, v1.Signal(fmt.Sprintf("SIGRTMIN+%d", i)))
	}
	for i := 1; i <= 14; i++ {
		names = append(names, v1.Signal(fmt.Sprintf("SIGRTMAX-%d", i)))
	}
	return names
}

func validateProbes(c *v1.Container, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, p := range []struct {
		field string
		probe *v1.Probe
	}{{"livenessProbe", c.LivenessProbe}, {"startupProbe", c.StartupProbe}} {
		if p.probe == nil {
			continue
		}
		at := path.Child(p.field)
		errs = append(errs, validateProbe(p.probe, at)...)
		if p.probe.SuccessThreshold != 1 {
			errs = append(errs, field.Invalid(at.Child("successThreshold"), p.probe.SuccessThreshold, "must be 1"))
		}
		if g := p.probe.TerminationGracePeriodSeconds; g != nil && *g <= 0 {
			errs = append(errs, field.Invalid(at.Child("terminationGracePeriodSeconds"), *g, "must be greater than 0"))
		}
	}
	if c.ReadinessProbe != nil {
		at := path.Child("readinessProbe")
		errs = append(errs, validateProbe(c.ReadinessProbe, at)...)
		if g := c.ReadinessProbe.TerminationGracePeriodSeconds; g != nil {
			errs = append(errs, field.Invalid(at.Child("terminationGracePeriodSeconds"), *g, "must not be set for readinessProbes"))
		}
	}
	return errs
}

func validateProbe(p *v1.Probe, path *field.Path) field.ErrorList {
	handler, errs := onlyOne(path, "handler type", alternative{"exec", p.Exec != nil}, alternative{"httpGet", p.HTTPGet != nil},
		alternative{"tcpSocket", p.TCPSocket != nil}, alternative{"grpc", p.GRPC != nil})
	switch handler {
	case "":
		errs = append(errs, field.Required(path, "must specify a handler type"))
	case "exec":
		errs = append(errs, validateExec(p.Exec, path.Child("exec"))...)
	case "httpGet":
		errs = append(errs, validateHTTPGet(p.HTTPGet, path.Child("httpGet"))...)
	case "tcpSocket":
		errs = append(errs, validatePort(p.TCPSocket.Port, path.Child("tcpSocket", "port"))...)
	case "grpc":
		errs = append(errs, invalid(path.Child("grpc", "port"), p.GRPC.Port, validation.IsValidPortNum(int(p.GRPC.Port)))...)
	}
	// Defaults have replaced 0, so the API reference's minimum of 1 only excludes negative values.
	for _, n := range []struct {
		field string
		value int32
	}{
		{"initialDelaySeconds", p.InitialDelaySeconds},
		{"timeoutSeconds", p.TimeoutSeconds},
		{"periodSeconds", p.PeriodSeconds},
		{"successThreshold", p.SuccessThreshold},
		{"failureThreshold", p.FailureThreshold},
	} {
		if n.value < 0 {
			errs = append(errs, field.Invalid(path.Child(n.field), n.value, "must be greater than or equal to 0"))
		}
	}
	return errs
}

// validateLifecycle checks the hooks; grace is the pod's termination grace period in seconds.
func validateLifecycle(l *v1.Lifecycle, grace int64, os *v1.PodOS, path *field.Path) field.ErrorList {
	if l == nil {
		return nil
	}
	var errs field.ErrorList
	for _, h := range []struct {
		field   string
		handler *v1.LifecycleHandler
	}{{"postStart", l.PostStart}, {"preStop", l.PreStop}} {
		if h.handler != nil {
			errs = append(errs, validateHook(h.handler, grace, path.Child(h.field))...)
		}
	}
	if l.StopSignal != nil {
		at := path.Child("stopSignal")
		switch {
		case os == nil:
			errs = append(errs, field.Forbidden(at, "may not be set for containers with empty `spec.os.name`"))
		case os.Name == v1.Windows:
			errs = append(errs, validateChoice(l.StopSignal, at, windowsSignals...)...)
		case os.Name == v1.Linux:
			errs = append(errs, validateChoice(l.StopSignal, at, linuxSignals...)...)
		}
	}
	return errs
}

func validateHook(h *v1.LifecycleHandler, grace int64, path *field.Path) field.ErrorList {
	handler, errs := onlyOne(path, "handler type", alternative{"exec", h.Exec != nil}, alternative{"httpGet", h.HTTPGet != nil},
		alternative{"tcpSocket", h.TCPSocket != nil}, alternative{"sleep", h.Sleep != nil})
	switch handler {
	case "":
		errs = append(errs, field.Required(path, "must specify a handler type"))
	case "exec":
		errs = append(errs, validateExec(h.Exec, path.Child("exec"))...)
	case "httpGet":
		errs = append(errs, validateHTTPGet(h.HTTPGet, path.Child("httpGet"))...)
	case "tcpSocket":
		errs = append(errs, validatePort(h.TCPSocket.Port, path.Child("tcpSocket", "port"))...)
	case "sleep":
		if s := h.Sleep.Seconds; s < 0 || s > grace {
			errs = append(errs, field.Invalid(path.Child("sleep", "seconds"), s,
				fmt.Sprintf("must be non-negative and not more than terminationGracePeriodSeconds (%d)", grace)))
		}
	}
	return errs
}

func validateExec(e *v1.ExecAction, path *field.Path) field.ErrorList {
	if len(e.Command) == 0 {
		return field.ErrorList{field.Required(path.Child("command"), "")}
	}
	return nil
}

func validateHTTPGet(h *v1.HTTPGetAction, path *field.Path) field.ErrorList {
	errs := validatePort(h.Port, path.Child("port"))
	errs = append(errs, validateEnum(h.Scheme, path.Child("scheme"), v1.URISchemeHTTP, v1.URISchemeHTTPS)...)
	for i, header := range h.HTTPHeaders {
		errs = append(errs, invalid(path.Child("httpHeaders").Index(i).Child("name"), header.Name,
			validation.IsHTTPHeaderName(header.Name))...)
	}
	return errs
}

func validatePort(p intstr.IntOrString, path *field.Path) field.ErrorList {
	if p.Type == intstr.Int {
		return invalid(path, p.IntValue(), validation.IsValidPortNum(p.IntValue()))
	}
	return invalid(path, p.StrVal, validation.IsValidPortName(p.StrVal))
}

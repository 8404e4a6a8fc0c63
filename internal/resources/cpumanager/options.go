package cpumanager

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Options of the static policy (cpuManagerPolicyOptions).
const (
	fullPhysicalCPUs   = "full-pcpus-only"
	strictReservation  = "strict-cpu-reservation"
	alignByUncoreCache = "prefer-align-cpus-by-uncorecache"
	spreadAcrossNodes  = "distribute-cpus-across-numa"
	alignBySocket      = "align-by-socket"
	spreadAcrossCores  = "distribute-cpus-across-cores"
)

// Feature gates of options that are not stable.
const (
	betaGate  = "CPUManagerPolicyBetaOptions"
	alphaGate = "CPUManagerPolicyAlphaOptions"
)

// gateOf maps each option to the feature gate that it requires; "" is none.
var gateOf = map[string]string{
	fullPhysicalCPUs: "", strictReservation: "", alignByUncoreCache: "",
	spreadAcrossNodes: betaGate,
	alignBySocket:     alphaGate, spreadAcrossCores: alphaGate,
}

// exclusions are mutually exclusive options.
var exclusions = [...][2]string{
	{fullPhysicalCPUs, spreadAcrossCores},
	{spreadAcrossNodes, spreadAcrossCores},
	{alignByUncoreCache, spreadAcrossCores},
	{alignByUncoreCache, spreadAcrossNodes},
}

// Gates are the feature gates that affect the CPU manager.
type Gates struct {
	BetaOptions              bool // CPUManagerPolicyBetaOptions
	AlphaOptions             bool // CPUManagerPolicyAlphaOptions
	PodLevelResourceManagers bool
}

func (g Gates) allow(gate string) bool {
	return gate == "" || gate == betaGate && g.BetaOptions || gate == alphaGate && g.AlphaOptions
}

type options map[string]bool

// parseOptions validates the options of the static policy. Errors name the option and the remedy.
func parseOptions(configured map[string]string, gates Gates) (options, error) {
	var errs []error
	fail := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("cpuManagerPolicyOptions: "+format, args...))
	}
	o := options{}
	for _, name := range slices.Sorted(maps.Keys(configured)) {
		gate, known := gateOf[name]
		on, err := strconv.ParseBool(configured[name])
		switch {
		case !known:
			fail("%s is no option of the static policy; those are %s", name, strings.Join(slices.Sorted(maps.Keys(gateOf)), ", "))
		case !gates.allow(gate):
			fail("%s needs the feature gate %s", name, gate)
		case err != nil:
			fail("%s is %q, and must be true or false", name, configured[name])
		case on:
			o[name] = true
		}
	}
	for _, pair := range exclusions {
		if o[pair[0]] && o[pair[1]] {
			fail("%s and %s exclude each other; turn one off", pair[0], pair[1])
		}
	}
	return o, errors.Join(errs...)
}

// String returns the names of the enabled options.
func (o options) String() string { return strings.Join(slices.Sorted(maps.Keys(o)), ", ") }

// take returns the TakeOptions for a machine with the given number of threads per core.
func (o options) take(threads int) TakeOptions {
	t := TakeOptions{
		AlignByUncoreCache: o[alignByUncoreCache], SpreadAcrossCores: o[spreadAcrossCores],
		SpreadAcrossNodes: o[spreadAcrossNodes], GroupSize: 1,
	}
	if o[fullPhysicalCPUs] {
		t.GroupSize = threads
	}
	return t
}

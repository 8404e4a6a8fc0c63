package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"berth/internal/config"
)

// variableOf returns the environment variable that stands for the flag.
func variableOf(flag string) string {
	return "BERTH_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// notFromVariables are flags that say what to do now, which nobody wants for good: with some, pods
// and images go.
var notFromVariables = map[string]bool{"help": true, "version": true, "all": true, "rm": true}

// withoutVariable is the annotation of a flag whose name stands for something else in variables.
const withoutVariable = "berth_without_variable"

// fromVariable is the annotation of a flag that has its value, the one of the annotation, from its
// environment variable.
const fromVariable = "berth_from_variable"

// exclusiveGroups is the annotation by which the library knows the flags that exclude each other.
const exclusiveGroups = "cobra_annotation_mutually_exclusive"

// applyEnvironment gives the command's flags that are not on the command line the values of their
// environment variables, as far as these are not empty. A flag also wins over the variable of one
// that it excludes.
func applyEnvironment(cmd *cobra.Command) error {
	excluded := map[string]bool{}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		for _, group := range f.Annotations[exclusiveGroups] {
			for name := range strings.FieldsSeq(group) {
				excluded[name] = true
			}
		}
	})
	var errs []error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		name := variableOf(f.Name)
		value := os.Getenv(name)
		if value == "" || f.Changed || excluded[f.Name] || notFromVariables[f.Name] || f.Annotations[withoutVariable] != nil {
			return
		}
		var err error
		if k, ok := f.Value.(*config.Flag); ok {
			err = k.SetFrom(name, value)
			f.Changed = err == nil
		} else {
			err = cmd.Flags().Set(f.Name, value)
		}
		if err == nil {
			err = cmd.Flags().SetAnnotation(f.Name, fromVariable, []string{value})
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("environment variable %s: invalid argument %q for --%s: %w", name, value, f.Name, plainFlagError(err)))
		}
	})
	return errors.Join(errs...)
}

// plainFlagError is what is wrong with a value, without the flag's name, which the library adds.
func plainFlagError(err error) error {
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return invalid.Unwrap()
	}
	return err
}

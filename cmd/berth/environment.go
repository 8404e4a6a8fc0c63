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

func variableOf(flag string) string {
	return "BERTH_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// notFromVariables are flags of one invocation. As a permanent default they would be harmful: some
// delete pods or images.
var notFromVariables = map[string]bool{"help": true, "version": true, "all": true, "rm": true}

// withoutVariable is the annotation of a flag whose environment variable would have another
// meaning.
const withoutVariable = "berth_without_variable"

// fromVariable is the annotation of a flag that was set from its environment variable, with the
// value.
const fromVariable = "berth_from_variable"

// exclusiveGroups is cobra's annotation of mutually exclusive flags.
const exclusiveGroups = "cobra_annotation_mutually_exclusive"

// applyEnvironment sets the command's flags that are not on the command line from their environment
// variables, unless these are empty. A flag also takes precedence over the variable of a flag that
// it excludes.
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

// plainFlagError returns the cause of an invalid value without the flag's name, which pflag adds.
func plainFlagError(err error) error {
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return invalid.Unwrap()
	}
	return err
}

// Packaging describes the content of a release, from the build information in its programs: a
// software bill of materials (SPDX), and the licences of all components.
//
//	packaging -berth FILE -bundle FILE [-bundle FILE] -version VERSION -arch ARCH -out DIR
//
// The output is reproducible: its time is SOURCE_DATE_EPOCH.
package main

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

type release struct {
	version, arch string
	made          time.Time
	programs      []program // the agent is the first
	components    []component
}

// Names of the output files.
const (
	sbomFile     = "sbom.spdx.json"
	licencesFile = "third-party-licences.txt"
)

func main() {
	var (
		r          release
		agent, out string
		bundles    []string
	)
	flag.StringVar(&agent, "berth", "", "the program berth")
	flag.Func("bundle", "a bundle that is embedded into it (repeatable)", func(file string) error {
		bundles = append(bundles, file)
		return nil
	})
	flag.StringVar(&r.version, "version", "", "version of the release")
	flag.StringVar(&r.arch, "arch", "", "architecture of the programs, as Go names it")
	flag.StringVar(&out, "out", "", "folder to write "+sbomFile+" and "+licencesFile+" to")
	flag.Parse()
	if err := r.describe(agent, bundles, out); err != nil {
		fmt.Fprintln(os.Stderr, "packaging:", err)
		os.Exit(1)
	}
}

// describe writes both files.
func (r *release) describe(agent string, bundles []string, out string) error {
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w: set it to the time of the commit, in seconds", err)
	}
	r.made = time.Unix(seconds, 0).UTC()
	if err := r.read(agent, bundles); err != nil {
		return err
	}
	sources, err := newSources()
	if err != nil {
		return err
	}
	if err := sources.fill(r.components); err != nil {
		return err
	}
	sbom, err := r.sbom()
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(out, sbomFile), sbom, 0o644),
		os.WriteFile(filepath.Join(out, licencesFile), r.licences(), 0o644),
	)
}

// read reads the programs and their components.
func (r *release) read(agent string, bundles []string) error {
	content, err := os.ReadFile(agent)
	if err != nil {
		return err
	}
	berth, err := readProgram("berth", content)
	if err != nil {
		return err
	}
	r.programs = []program{berth}
	versions := map[string]string{}
	for _, bundle := range bundles {
		inside, components, err := readBundleFile(bundle)
		if err != nil {
			return fmt.Errorf("%s: %w", bundle, err)
		}
		r.programs = append(r.programs, inside...)
		maps.Copy(versions, components)
	}
	for _, p := range r.programs {
		if arch := p.setting("GOARCH"); p.info != nil && arch != r.arch {
			return fmt.Errorf("%s is a program for %s, and the release is for %s", p.name, arch, r.arch)
		}
	}
	r.components, err = componentsOf(r.programs, versions)
	return err
}

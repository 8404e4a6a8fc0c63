package main

import (
	"bytes"
	"fmt"
	"regexp"
	"time"

	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"
)

// sbom returns the bill of materials: the agent, the programs that it contains, and the components
// that each is linked with.
func (r *release) sbom() ([]byte, error) {
	agent := r.programs[0]
	d := spdx.Document{
		SPDXVersion:       spdx.Version,
		DataLicense:       spdx.DataLicense,
		SPDXIdentifier:    "DOCUMENT",
		DocumentName:      fmt.Sprintf("berth-%s-%s", r.version, r.arch),
		DocumentNamespace: fmt.Sprintf("https://berth.dev/spdx/berth-%s-%s-%s", r.version, r.arch, agent.sha256),
		CreationInfo: &spdx.CreationInfo{
			Created:  r.made.Format(time.RFC3339),
			Creators: []common.Creator{{CreatorType: "Tool", Creator: "berth-packaging"}},
		},
	}
	relate := func(from, what, to string) {
		d.Relationships = append(d.Relationships, &spdx.Relationship{
			RefA: common.MakeDocElementID("", from), RefB: common.MakeDocElementID("", to), Relationship: what,
		})
	}
	relate("DOCUMENT", common.TypeRelationshipDescribe, programID(agent.name))
	for _, p := range r.programs {
		d.Packages = append(d.Packages, r.programPackage(p))
		if p.name != agent.name {
			relate(programID(agent.name), common.TypeRelationshipContains, programID(p.name))
		}
	}
	for _, c := range r.components {
		d.Packages = append(d.Packages, c.spdxPackage())
		for _, user := range c.users {
			relate(programID(user), common.TypeRelationshipStaticLink, c.id())
		}
	}
	var b bytes.Buffer
	err := json.Write(d, &b, json.Indent("  "))
	return b.Bytes(), err
}

// programPackage returns a program of this repository, or of a third-party module, with the version
// and licence of that.
func (r *release) programPackage(p program) *spdx.Package {
	version, licence := r.version, "Apache-2.0"
	if p.info != nil && !ours(p.info.Main.Path) {
		version, licence = p.info.Main.Version, noAssertion
		for _, c := range r.components {
			if c.name == p.info.Main.Path && c.version == version {
				licence = c.licence
			}
		}
	}
	return &spdx.Package{
		PackageName:             p.name,
		PackageSPDXIdentifier:   common.ElementID(programID(p.name)),
		PackageVersion:          version,
		PackageDownloadLocation: noAssertion,
		PackageChecksums:        []common.Checksum{{Algorithm: common.SHA256, Value: p.sha256}},
		PackageLicenseConcluded: noAssertion,
		PackageLicenseDeclared:  licence,
		PackageCopyrightText:    noAssertion,
		PrimaryPackagePurpose:   "APPLICATION",
	}
}

func (c component) spdxPackage() *spdx.Package {
	p := &spdx.Package{
		PackageName:             c.name,
		PackageSPDXIdentifier:   common.ElementID(c.id()),
		PackageVersion:          c.version,
		PackageDownloadLocation: noAssertion,
		PackageLicenseConcluded: noAssertion,
		PackageLicenseDeclared:  c.licence,
		PackageCopyrightText:    noAssertion,
		PrimaryPackagePurpose:   "LIBRARY",
		PackageExternalReferences: []*spdx.PackageExternalReference{
			{Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: c.url()},
		},
	}
	if c.changed {
		p.PackageComment = "Built from a changed copy; bundle/patches and bundle/containerd of Berth have the changes."
	}
	return p
}

// notInID matches characters that SPDX does not allow in an identifier.
var notInID = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

func programID(name string) string { return "Program-" + notInID.ReplaceAllString(name, "-") }

func (c component) id() string {
	return "Component-" + notInID.ReplaceAllString(c.name+"-"+c.version, "-")
}

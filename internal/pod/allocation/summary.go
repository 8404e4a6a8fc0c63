package allocation

import (
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
)

// summary is the form of a resize in events.
type summary struct {
	Resources      *v1.ResourceRequirements `json:"resources,omitempty"`
	InitContainers []containerSummary       `json:"initContainers,omitempty"`
	Containers     []containerSummary       `json:"containers,omitempty"`
	Generation     int64                    `json:"generation,omitempty"`
	Error          string                   `json:"error,omitempty"`
}

type containerSummary struct {
	Name      string                  `json:"name"`
	Resources v1.ResourceRequirements `json:"resources"`
}

// Summary returns the pod's resources as the JSON of events about a resize, with an error if
// failure is not "".
func Summary(p *v1.Pod, failure string) string {
	list := func(containers []v1.Container) []containerSummary {
		var out []containerSummary
		for i := range containers {
			out = append(out, containerSummary{containers[i].Name, containers[i].Resources})
		}
		return out
	}
	b, err := json.Marshal(summary{
		Resources: p.Spec.Resources, InitContainers: list(p.Spec.InitContainers), Containers: list(p.Spec.Containers), Generation: p.Generation, Error: failure,
	})
	if err != nil {
		return fmt.Sprintf("%q", err) // unreachable: amounts and names always have a JSON form
	}
	return string(b)
}

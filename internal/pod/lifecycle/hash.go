package lifecycle

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strconv"

	v1 "k8s.io/api/core/v1"
)

// ContainerHash returns the hash of the fields whose change requires a new container: name and
// image only. It is stored in an annotation of the container, so its odd form must stay the
// kubelet's: then a migration from a kubelet restarts no container.
func ContainerHash(c *v1.Container) string {
	b, err := json.Marshal(struct {
		Image string `json:"image"`
		Name  string `json:"name"`
	}{c.Image, c.Name})
	if err != nil {
		panic(fmt.Sprintf("two strings have no JSON form: %v", err))
	}
	text := []byte("([]uint8)[")
	for i, octet := range b {
		if i > 0 {
			text = append(text, ' ')
		}
		text = strconv.AppendUint(text, uint64(octet), 10)
	}
	h := fnv.New32a()
	h.Write(append(text, ']')) // a hash's Write never fails
	return strconv.FormatUint(uint64(h.Sum32()), 16)
}

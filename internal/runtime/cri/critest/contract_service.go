package critest

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// makeLogDir creates the pod's log directory, which is the client's duty.
func (c *contract) makeLogDir() {
	c.Helper()
	c.must("make log folder", os.MkdirAll(filepath.Join(c.LogDir, c.uid), 0o755))
}

// serviceContract covers what does not concern one pod.
var serviceContract = []contractTest{
	{name: "version", run: func(c *contract) {
		resp, err := c.Runtime.Version(c.within(), &runtimeapi.VersionRequest{Version: "0.1.0"})
		c.must("version", err)
		if resp.Version != "0.1.0" || resp.RuntimeName == "" || resp.RuntimeVersion == "" || resp.RuntimeApiVersion != "v1" {
			c.Errorf("version %v, want 0.1.0, a runtime with a version, API v1", resp)
		}
	}},
	{name: "conditions", run: func(c *contract) {
		resp, err := c.Runtime.Status(c.within(), &runtimeapi.StatusRequest{})
		c.must("status", err)
		for _, name := range []string{runtimeapi.RuntimeReady, runtimeapi.NetworkReady} {
			i := slices.IndexFunc(resp.GetStatus().GetConditions(), func(cond *runtimeapi.RuntimeCondition) bool { return cond.Type == name })
			if i < 0 {
				c.Errorf("no condition %s in %v", name, resp)
				continue
			}
			if cond := resp.Status.Conditions[i]; !cond.Status && (name == runtimeapi.RuntimeReady || c.PodNetwork) {
				c.Errorf("condition %v, want true", cond)
			}
		}
	}},
	{name: "runtime config", run: func(c *contract) {
		resp, err := c.Runtime.RuntimeConfig(c.within(), &runtimeapi.RuntimeConfigRequest{})
		c.must("runtime config", err)
		if resp.GetLinux() == nil {
			c.Errorf("runtime config %v names no cgroup driver", resp)
		}
	}},
	{name: "image status", run: func(c *contract) {
		known, err := c.Images.ImageStatus(c.within(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: c.Image}})
		c.must("image status", err)
		if !strings.HasPrefix(known.GetImage().GetId(), "sha256:") || known.GetImage().GetSize() == 0 {
			c.Errorf("image %v, want an id and a size", known.GetImage())
		}
		if !slices.ContainsFunc(known.GetImage().GetRepoTags(), func(tag string) bool { return strings.HasSuffix(tag, c.Image) }) {
			c.Errorf("image tags %v, want %s", known.GetImage().GetRepoTags(), c.Image)
		}
		byID, err := c.Images.ImageStatus(c.within(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: known.GetImage().GetId()}})
		c.must("image status by id", err)
		if byID.GetImage().GetId() != known.GetImage().GetId() {
			c.Errorf("image by id %v, want %v", byID.GetImage(), known.GetImage())
		}
		unknown, err := c.Images.ImageStatus(c.within(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: "berth.local/unknown:" + c.uid}})
		c.must("status of an unknown image", err)
		if unknown.Image != nil {
			c.Errorf("unknown image has status %v", unknown.Image)
		}
	}},
	{name: "image lists", run: func(c *contract) {
		all, err := c.Images.ListImages(c.within(), &runtimeapi.ListImagesRequest{})
		c.must("list images", err)
		if len(all.Images) == 0 {
			c.Errorf("no images")
		}
		unknown := &runtimeapi.ImageSpec{Image: "berth.local/unknown:" + c.uid}
		filtered, err := c.Images.ListImages(c.within(), &runtimeapi.ListImagesRequest{Filter: &runtimeapi.ImageFilter{Image: unknown}})
		c.must("list images by an unknown name", err)
		if len(filtered.Images) != len(all.Images) {
			c.Errorf("a filter has an effect: %d images of %d", len(filtered.Images), len(all.Images))
		}
		_, err = c.Images.RemoveImage(c.within(), &runtimeapi.RemoveImageRequest{Image: unknown})
		c.must("remove an unknown image", err)
	}},
	{name: "image file system", run: func(c *contract) {
		resp, err := c.Images.ImageFsInfo(c.within(), &runtimeapi.ImageFsInfoRequest{})
		c.must("image file system", err)
		if len(resp.ImageFilesystems) == 0 || resp.ImageFilesystems[0].GetFsId().GetMountpoint() == "" {
			c.Errorf("image file systems %v, want one with a mount point", resp.ImageFilesystems)
		}
	}},
	{name: "unknown ids", run: func(c *contract) {
		id := strings.Repeat("0", 64)
		_, err := c.Runtime.PodSandboxStatus(c.within(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
		c.wantCode("sandbox status", err, codes.NotFound)
		_, err = c.Runtime.ContainerStatus(c.within(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
		c.wantCode("container status", err, codes.NotFound)
		_, err = c.createAnswer(id, c.containerConfig(0, c.Commands.Forever))
		c.wantCode("create container", err, codes.NotFound)
		c.wantCode("start container", c.startAnswer(id), codes.NotFound)
		_, err = c.Runtime.ExecSync(c.within(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"x"}})
		c.wantCode("exec", err, codes.NotFound)
		_, err = c.Runtime.UpdateContainerResources(c.within(), &runtimeapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{}})
		c.wantCode("update resources", err, codes.NotFound)
		_, err = c.Runtime.ReopenContainerLog(c.within(), &runtimeapi.ReopenContainerLogRequest{ContainerId: id})
		c.wantCode("reopen log", err, codes.NotFound)
		_, err = c.Runtime.ContainerStats(c.within(), &runtimeapi.ContainerStatsRequest{ContainerId: id})
		c.wantCode("container stats", err, codes.NotFound)

		// Removing what does not exist is no error.
		c.stop(id, 1)
		c.remove(id)
		c.stopSandbox(id)
		c.removeSandbox(id)
		containers, err := c.Runtime.ListContainers(c.within(), &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{Id: id}})
		c.must("list containers", err)
		sandboxes, err := c.Runtime.ListPodSandbox(c.within(), &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{Id: id}})
		c.must("list sandboxes", err)
		if len(containers.Containers)+len(sandboxes.Items) != 0 {
			c.Errorf("lists of an unknown id: %v, %v", containers, sandboxes)
		}
	}},
	{name: "streamed lists are unimplemented", run: func(c *contract) {
		stream, err := c.Runtime.StreamContainers(c.within(), &runtimeapi.StreamContainersRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		if err == io.EOF || status.Code(err) != codes.Unimplemented {
			c.Errorf("streamed list of containers: %v, want Unimplemented", err)
		}
		sandboxes, err := c.Runtime.StreamPodSandboxes(c.within(), &runtimeapi.StreamPodSandboxesRequest{})
		if err == nil {
			_, err = sandboxes.Recv()
		}
		if err == io.EOF || status.Code(err) != codes.Unimplemented {
			c.Errorf("streamed list of sandboxes: %v, want Unimplemented", err)
		}
	}},
}

package stats

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/pod"
)

func TestLocal(t *testing.T) {
	h := newHost(t)
	c := h.collector()
	source := func(name string, s v1.VolumeSource) v1.Volume { return v1.Volume{Name: name, VolumeSource: s} }
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u", Namespace: "default", Name: "web"}, Spec: v1.PodSpec{Volumes: []v1.Volume{
		source("data", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}),
		source("other", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}),
		source("late", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}),
		source("config", v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{}}),
	}}}
	h.write("root/pods/u/volumes/kubernetes.io~empty-dir/data/sub/big", string(make([]byte, 100_000)))
	h.write("root/pods/u/volumes/kubernetes.io~empty-dir/other/big", string(make([]byte, 50_000)))
	h.write("root/pods/u/volumes/kubernetes.io~configmap/config/key", "value")
	h.write("logs/default_web_u/main/0.log.20260101-000000", "rotated\n")
	size := func(path string) Size {
		t.Helper()
		s, err := c.folders.walk(t.Context(), filepath.Join(h.dir, path))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}

	got, err := c.Local(t.Context(), p, h.pods[0], Extent{Volumes: []string{"data", "late"}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]Size{"data": size("root/pods/u/volumes/kubernetes.io~empty-dir/data")}, got.Volumes); diff != "" {
		t.Errorf("volumes (-want +got):\n%s", diff)
	}
	if got.Volumes["data"].Bytes < 100_000 || len(got.Containers) != 0 || len(got.Spaces) != 1 || got.Spaces[0].Free == 0 {
		t.Errorf("a volume: %+v", got)
	}

	got, err = c.Local(t.Context(), p, h.pods[0], Extent{Volumes: []string{"config"}, Containers: true})
	if err != nil {
		t.Fatal(err)
	}
	main := ContainerFiles{Rootfs: size("layer"), Logs: c.folders.logsIn(h.dir + "/logs/default_web_u/main")}
	if diff := cmp.Diff(map[string]ContainerFiles{"main": main}, got.Containers); diff != "" || main.Rootfs.Bytes == 0 || main.Logs.Bytes == 0 {
		t.Errorf("containers (-want +got):\n%s", diff)
	}
	logs := []LogUse{{"u", "default", "web", "main", main.Logs.Bytes}}
	if diff := cmp.Diff(logs, c.Logs()); diff != "" {
		t.Errorf("logs of containers (-want +got):\n%s", diff)
	}
	if _, ok := got.Volumes["config"]; !ok || got.Own != (Size{uint64(len("127.0.0.1 localhost\n")), 1}) || len(got.Spaces) != 1 {
		t.Errorf("the whole pod: %+v", got)
	}

	// It has ended and waits to be started again: its layer is not mounted, and its log is there.
	ended := *h.pods[0]
	ended.Containers = slices.Clone(ended.Containers)
	ended.Containers[0].State = pod.StateExited
	if got, err = c.Local(t.Context(), p, &ended, Extent{Containers: true}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]ContainerFiles{"main": {Logs: main.Logs}}, got.Containers); diff != "" {
		t.Errorf("a container that has ended (-want +got):\n%s", diff)
	}

	if _, err := c.Local(t.Context(), p, h.pods[1], Extent{Containers: true}); err != nil {
		t.Errorf("a pod of which nothing runs: %v", err)
	}
	gone := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "gone"}, Spec: p.Spec}
	if got, err := c.Local(t.Context(), gone, h.pods[1], Extent{Volumes: []string{"data"}, Containers: true}); err != nil || len(got.Volumes) != 0 {
		t.Errorf("a pod that is gone: %+v, %v", got, err)
	}
}

func TestReadSpace(t *testing.T) {
	c := newHost(t).collector()
	dir := t.TempDir()
	s, err := c.ReadSpace(dir)
	if err != nil || s.Path != dir || s.Device == 0 || s.Free == 0 {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := c.ReadSpace(dir + "/none"); !os.IsNotExist(err) {
		t.Errorf("a path that is not there: %v", err)
	}
}

// late is a context that ends after it was asked so often.
type late struct {
	context.Context
	left int
}

func (l *late) Err() error {
	if l.left--; l.left < 0 {
		return context.DeadlineExceeded
	}
	return nil
}

// A walk that takes too long tells what it has seen: whoever has most files is found by that.
func TestLocalThatTakesTooLong(t *testing.T) {
	h := newHost(t)
	c := h.collector()
	data := v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u", Namespace: "default", Name: "web"}, Spec: v1.PodSpec{Volumes: []v1.Volume{data}}}
	for _, name := range []string{"a", "b", "c"} {
		h.write("root/pods/u/volumes/kubernetes.io~empty-dir/data/"+name+"/file", "data")
		h.write("layer/"+name+"/file", "data")
	}
	background := context.Background()
	got, err := c.Local(&late{background, 2}, p, h.pods[0], Extent{Volumes: []string{"data"}, Containers: true})
	if n := got.Volumes["data"].Inodes; !errors.Is(err, context.DeadlineExceeded) || n != 6 { // the folder, x, three folders, a file in one
		t.Errorf("a volume: %d inodes, %v", n, err)
	}
	got, err = c.Local(&late{background, 2}, p, h.pods[0], Extent{Containers: true})
	if n := got.Containers["main"].Rootfs.Inodes; !errors.Is(err, context.DeadlineExceeded) || n != 6 || got.Containers["main"].Logs.Inodes == 0 {
		t.Errorf("a layer: %d inodes, %v", n, err)
	}
}

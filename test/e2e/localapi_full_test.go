//go:build e2e

package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
)

// newAPIDisk puts the file of objects on a tmpfs of its own of some MiB.
func (n *node) newAPIDisk(size string) *disk {
	n.t.Helper()
	api := filepath.Join(n.place.Root, "api")
	must(n.t, os.MkdirAll(api, 0o700), unix.Mount("api", api, "tmpfs", 0, "size="+size))
	return &disk{n: n, dir: api}
}

// When the disk of the API's objects is full, writes fail and name the disk, and whoever reads is
// answered. Pods run, and are restarted, as if nothing was; what became of them meanwhile is in the
// API as soon as there is room again, and nothing else has to be done for it.
func TestLocalAPIFullDisk(t *testing.T) {
	t.Parallel()
	n := newAPINode(t)
	d := n.newAPIDisk("4m")
	a := n.start()
	client := n.client().CoreV1()
	n.kubectl("run", "web", "--image", helloImage, "--", "serve")
	n.kubectl("wait", "--for=condition=Ready", "pod/web", "--timeout=30s")
	empty := d.fill()

	large := strings.Repeat("x", 1<<19)
	var full error
	var acknowledged []string
	until(t, "a write to fail", func() bool {
		name := "large-" + rand.String(8)
		_, full = client.ConfigMaps("default").Create(n.ctx, &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"a": large}}, metav1.CreateOptions{})
		if full == nil {
			acknowledged = append(acknowledged, name)
		}
		return full != nil
	})
	wantAcknowledged := func(when string) {
		t.Helper()
		for _, name := range acknowledged {
			if c, err := client.ConfigMaps("default").Get(n.ctx, name, metav1.GetOptions{}); err != nil || !strings.HasPrefix(large, c.Data["a"]) || len(c.Data["a"]) < 1<<12 {
				t.Errorf("%s: the object %s that was acknowledged is lost: %v", when, name, err)
			}
		}
	}
	// Smaller ones may still have room.
	for failed := 0; failed < 3; {
		name := "small-" + rand.String(8)
		if _, err := client.ConfigMaps("default").Create(n.ctx, &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"a": large[:1<<12]}}, metav1.CreateOptions{}); err != nil {
			failed++
			continue
		}
		acknowledged, failed = append(acknowledged, name), 0
	}
	wantAcknowledged("on the full disk")
	wantText(t, "the answer", full.Error(), "no space left on device")
	until(t, "berth check to tell of it", func() bool {
		said := n.command(n.ctx, "check").String()
		return strings.Contains(said, "LocalAPI") && strings.Contains(said, "no space left on device")
	})
	before, err := client.Pods("default").Get(n.ctx, "web", metav1.GetOptions{})
	must(t, err)
	backup := filepath.Join(d.dir, "backup")
	refused := n.command(n.ctx, "backup", backup)
	if refused.code == 0 {
		t.Error("there is a backup on a full disk")
	}
	wantText(t, "berth backup", refused.errOut, backup, "no space left on device")
	if strings.Contains(refused.errOut, "broke the backup off") {
		t.Errorf("the agent is said to be the reason: %s", refused.errOut)
	}
	if left := glob(filepath.Join(d.dir, "*backup*")); len(left) > 0 {
		t.Errorf("%v are left of the backup", left)
	}
	if left := glob(filepath.Join(d.dir, ".*backup*")); len(left) > 0 {
		t.Errorf("%v are left of the backup", left)
	}

	// A container that ends is started again, and so is the agent.
	must(t, unix.Kill(n.pid(containerID(n.awaitReady("web").named("web"), "web")), unix.SIGKILL))
	n.await("web to have been started again", func(p pods) bool { return container(p.named("web"), "web").RestartCount == 1 && p.ready("web") })
	a.kill()
	n.start()
	now := n.awaitReady("web")
	if c := container(now.named("web"), "web"); c.RestartCount != 1 {
		t.Errorf("after the next agent's start: %+v", c)
	}
	if p, err := client.Pods("default").Get(n.ctx, "web", metav1.GetOptions{}); err != nil || p.UID != before.UID {
		t.Errorf("reads on the full disk: %v", err)
	}
	wantAcknowledged("after the next agent's start")

	empty()
	until(t, "the API to have what became of web", func() bool {
		p, err := client.Pods("default").Get(n.ctx, "web", metav1.GetOptions{})
		return err == nil && container(p, "web").RestartCount == 1 && container(p, "web").ContainerID == container(now.named("web"), "web").ContainerID && isReady(p)
	})
	until(t, "the local API to be well", func() bool { return localAPIFine.MatchString(n.command(n.ctx, "check").String()) })
	wantAcknowledged("with room again")
	n.kubectl("create", "configmap", "small")
	wantText(t, "berth backup", n.berth("backup", filepath.Join(n.place.Dir, "backup")), "Wrote ")
	n.kubectl("delete", "pod", "web")
	n.awaitOnly(nil)
}

// An agent whose API has no room for its first objects runs the pods of manifests, and has its API
// as soon as there is room.
func TestLocalAPIFullAtFirst(t *testing.T) {
	t.Parallel()
	n := newAPINode(t)
	d := n.newAPIDisk("1m")
	empty := d.fill()
	n.write("static.yaml", manifest("static", "serve"))
	n.write("conf.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: conf}\ndata: {a: b}\n")
	n.start()
	n.awaitReady("static")
	until(t, "berth check to tell of it", func() bool {
		said := n.command(n.ctx, "check").String()
		return strings.Contains(said, "LocalAPI") && strings.Contains(said, unix.ENOSPC.Error())
	})
	empty()
	client := n.client().CoreV1()
	until(t, "the API to have the pod and the object of the manifests", func() bool {
		p, err := client.Pods("default").Get(n.ctx, "static", metav1.GetOptions{})
		_, confErr := client.ConfigMaps("default").Get(n.ctx, "conf", metav1.GetOptions{})
		return errors.Join(err, confErr) == nil && isReady(p)
	})
	until(t, "the local API to be well", func() bool { return localAPIFine.MatchString(n.command(n.ctx, "check").String()) })
}

package podconfig

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"berth/internal/checkpoint"
	"berth/internal/pod"
	"berth/internal/source/manifest"
)

// kubeletUIDs is the file with the UIDs that a kubelet gave static pods. It is beside the last good
// versions of manifests.
const kubeletUIDs = "kubelet-uids.json"

// kubeletPods finds static pods that a kubelet started, so that they keep running under the
// kubelet's UIDs. The kubelet's hash is not reproduced; instead, a manifest that is older than the
// logs of its pod is assumed to be the one the pod was created from. It is safe for concurrent use.
type kubeletPods struct {
	logs string // directory of pod logs: <namespace>_<name>_<uid>
	file string // "": nothing is persisted
	log  *slog.Logger

	mu   sync.Mutex
	uids map[pod.UID]pod.UID  // guarded by mu; kubelet's UID by agent's; nil before load
	ours map[pod.UID]struct{} // guarded by mu; the agent's UIDs that were requested
}

// running returns the UID that a kubelet gave the pod of the manifest, or derived. Once found, the
// UID is cached until the content of the manifest changes.
func (k *kubeletPods) running(p *v1.Pod, from manifest.Origin, derived pod.UID) pod.UID {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.uids == nil {
		k.load()
	}
	k.ours[derived] = struct{}{}
	if uid, ok := k.uids[derived]; ok {
		return uid
	}
	uid, began := k.newest(p)
	if uid == "" || !changedAt(from.Path).Before(began) {
		return derived
	}
	// The newest logs may belong to a pod that this agent started, also when its manifest was
	// changed or its directory replaced.
	_, isOurs := k.ours[uid]
	if taken := slices.Collect(maps.Values(k.uids)); isOurs || slices.Contains(taken, uid) {
		return derived
	}
	k.log.Info("a static pod of a kubelet runs on under its UID", "manifest", from.Path, "pod", pod.FullNameOf(p), "uid", uid)
	k.uids[derived] = uid
	k.save()
	return uid
}

// newest returns the UID of the static pod of that name with the newest log directory, and when
// that was created; "" if there is none.
func (k *kubeletPods) newest(p *v1.Pod) (uid pod.UID, began time.Time) {
	entries, err := os.ReadDir(k.logs)
	if err != nil {
		return "", time.Time{} // no logs yet
	}
	for _, e := range entries {
		id, ok := strings.CutPrefix(e.Name(), p.Namespace+"_"+p.Name+"_")
		if !ok || !isStaticUID(id) || !e.IsDir() {
			continue // of another pod, or of a pod from an API server
		}
		if t := bornAt(filepath.Join(k.logs, e.Name())); t.After(began) {
			uid, began = pod.UID(id), t
		}
	}
	return uid, began
}

// isStaticUID reports whether the UID has the kubelet's form for static pods.
func isStaticUID(uid string) bool {
	b, err := hex.DecodeString(uid)
	return err == nil && len(b) == 16
}

// bornAt returns the creation time of a directory; zero if the file system does not record it.
func bornAt(folder string) time.Time {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, folder, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BTIME, &st); err != nil || st.Mask&unix.STATX_BTIME == 0 {
		return time.Time{}
	}
	return time.Unix(st.Btime.Sec, int64(st.Btime.Nsec))
}

// changedAt returns the last change time of the file and of the links on the way to it; now, if it
// does not exist.
func changedAt(path string) (last time.Time) {
	places, _, ok := resolve(path)
	for _, at := range places {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(at.folder, at.name), &st); err != nil {
			ok = false
		} else if t := time.Unix(st.Ctim.Unix()); t.After(last) {
			last = t
		}
	}
	if !ok {
		return time.Now()
	}
	return last
}

// load reads the file. k.mu is held.
func (k *kubeletPods) load() {
	k.uids, k.ours = map[pod.UID]pod.UID{}, map[pod.UID]struct{}{}
	if k.file == "" {
		return
	}
	var uids map[pod.UID]pod.UID
	err := checkpoint.Read(k.file, "UIDs that a kubelet gave static pods", func(b []byte) error {
		if err := json.Unmarshal(b, &uids); err != nil {
			return err
		}
		for _, uid := range uids {
			if !isStaticUID(string(uid)) {
				return fmt.Errorf("%q is no UID of a static pod", uid)
			}
		}
		return nil
	})
	if err != nil {
		k.log.Warn(err.Error())
		return
	}
	maps.Copy(k.uids, uids)
}

// save writes the file. k.mu is held.
func (k *kubeletPods) save() {
	if k.file == "" {
		return
	}
	b, err := json.Marshal(k.uids)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(k.file), 0o700)
	}
	if err == nil {
		err = checkpoint.WriteWarm(k.file, 0o600, b)
	}
	if err != nil {
		k.log.Warn("Failed to persist the UID of a kubelet's static pod: the next agent may restart the pod", "error", err)
	}
}

package volumes

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	utilexec "k8s.io/utils/exec"
	testingexec "k8s.io/utils/exec/testing"

	"berth/internal/record/events/messagestest"
)

// tools are programs that are run in the place of the host's.
type tools struct {
	answers map[string]error // nil: it works
	ran     []string
}

func (x *tools) executor() *testingexec.FakeExec {
	run := func(cmd string, args ...string) utilexec.Cmd {
		x.ran = append(x.ran, strings.Join(append([]string{cmd}, args...), " "))
		return &testingexec.FakeCmd{CombinedOutputScript: []testingexec.FakeAction{func() ([]byte, []byte, error) {
			return []byte("TYPE=ext4\n"), nil, x.answers[cmd]
		}}}
	}
	return &testingexec.FakeExec{CommandScript: slices.Repeat([]testingexec.FakeCommandAction{run}, 20)}
}

func TestLocalDiskGrows(t *testing.T) {
	const disk = "/dev/of-test"
	failed := errors.New("exit status 1")
	for name, tc := range map[string]struct {
		had, has string // sizes: of the claim's status and of the volume
		readOnly bool
		tool     error
		want     []string // events
		resized  int      // runs of resize2fs in two passes
		err      string
		after    string // size of the claim's status
	}{
		"grown":                               {had: "1Gi", has: "2Gi", resized: 1, want: []string{"p FileSystemResizeSuccessful", "c FileSystemResizeSuccessful"}, after: "2Gi"},
		"as it was":                           {had: "2Gi", has: "2Gi", after: "2Gi"},
		"nobody was told":                     {has: "2Gi", resized: 1, after: "2Gi"},
		"nobody was told, and the tool fails": {has: "2Gi", tool: failed, resized: 1},
		"nobody was told, only to be read":    {has: "2Gi", readOnly: true},
		"nobody says a size":                  {},
		"only to be read":                     {had: "1Gi", has: "2Gi", readOnly: true, want: []string{"p FileSystemResizeFailed", "c FileSystemResizeFailed"}, after: "1Gi"},
		"the tool fails": {
			had: "1Gi", has: "2Gi", tool: failed, resized: 2, after: "1Gi",
			err: `MountVolume.Setup failed while expanding volume failed for volume "pv-c" : resize of device ` + disk + " failed: exit status 1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, _, s := newStorage(t)
			x := &tools{answers: map[string]error{"resize2fs": tc.tool}}
			m.host.exec = x.executor()
			var events []string
			m.host.recorder = &recorder{pod: func(p *v1.Pod, _, reason, message string) {
				messagestest.SawEvent(reason, message)
				events = append(events, p.Name+" "+reason)
			}}
			m.host.recorder.(*recorder).claim = func(c *v1.PersistentVolumeClaim, _, reason, _ string) { events = append(events, c.Name+" "+reason) }
			claim, pv := s.bind("c", localSource(disk))
			if tc.has != "" {
				pv.Spec.Capacity = sizeList(tc.has)
			}
			if tc.had != "" {
				claim.Status.Capacity = sizeList(tc.had)
			}
			p := podWith(claimVolume("v", "c"))
			b := bound{PersistentVolume: pv, claim: claim, readOnly: tc.readOnly}
			if err := m.claims.hold(p.UID, "v", b); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				b := m.claims.of(p.UID, "v")
				v := &volume{pod: p, podDir: filepath.Join(m.host.root, "pods", uid), spec: &p.Spec.Volumes[0], bound: b}
				if err := os.MkdirAll(v.dir(), 0o750); err != nil {
					t.Fatal(err)
				}
				err := m.kinds["local"].(*locals).grow(t.Context(), v)
				if err != nil {
					err = &Error{Volume: b.Name, Step: "Setup failed while expanding volume", Err: err}
				}
				if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.HasPrefix(err.Error(), tc.err)) {
					t.Errorf("got %v", err)
				}
			}
			if diff := cmp.Diff(tc.want, events); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			runs := len(slices.DeleteFunc(x.ran, func(cmd string) bool { return cmd != "resize2fs "+disk }))
			if runs != tc.resized {
				t.Errorf("the tool ran %d times", runs)
			}
			if tc.after != "" {
				if diff := cmp.Diff(sizeList(tc.after), s.claims["c"].Status.Capacity); diff != "" {
					t.Errorf("size of the claim (-want +got):\n%s", diff)
				}
			}
			told := slices.ContainsFunc(s.claims["c"].Status.Conditions, func(c v1.PersistentVolumeClaimCondition) bool {
				return c.Type == v1.PersistentVolumeClaimNodeResizeError
			})
			if told != (tc.err != "") {
				t.Errorf("the claim says %v", s.claims["c"].Status.Conditions)
			}
		})
	}
}

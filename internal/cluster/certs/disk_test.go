package certs_test

import (
	"bytes"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/checkpoint/checkpointtest"
	"berth/internal/cluster/certs"
)

// A certificate that cannot be replaced stays in force, also for an agent that starts meanwhile.
func TestDiskThatTakesNoCertificates(t *testing.T) {
	checkpointtest.Each(t, func(t *testing.T, fail func(string) func()) {
		dir := filepath.Join(t.TempDir(), "pki")
		synctest.Test(t, func(t *testing.T) {
			o := newOffice(t)
			r, stop := o.rotation(t, dir, nil)
			defer stop()
			synctest.Wait()
			o.decide(t, day)
			first := await(t, r)
			mend := fail(dir)
			time.Sleep(22 * time.Hour)
			o.decide(t, day)
			time.Sleep(time.Hour)
			stored, err := certs.NewStore(dir, "kubelet-client").Read()
			if !r.Current().Leaf.Equal(first) || err != nil || !stored.Leaf.Equal(first) {
				t.Errorf("in force %v, stored %v, %v", r.Current().Leaf.NotAfter, stored, err)
			}
			mend()
			for range 30 {
				time.Sleep(time.Minute)
				o.decide(t, day)
			}
			synctest.Wait()
			if r.Current().Leaf.Equal(first) {
				t.Error("not renewed when the disk takes it")
			}
		})
	})
}

// The same for a self-signed pair, of which not one of the two files is replaced alone.
func TestDiskThatTakesNoSelfSignedPair(t *testing.T) {
	for free := range int64(4) { // around the length of a key
		dir := filepath.Join(t.TempDir(), "pki")
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			ip := net.IPv4(192, 0, 2, 1)
			serving := func() *certs.Serving {
				s, err := certs.NewServing(certs.ServingConfig{
					Dir: dir, Hostname: "node-1", IPs: func() []net.IP { return []net.IP{ip} }, Log: slog.New(slog.NewTextHandler(&log, nil)),
				})
				if err != nil {
					t.Fatal(err)
				}
				return s
			}
			s := serving()
			first, err := s.GetCertificate(nil)
			if err != nil {
				t.Fatal(err)
			}
			mend := checkpointtest.Full(t, dir, free*100)
			ip = net.IPv4(192, 0, 2, 2)
			for range 5 {
				if c, err := s.GetCertificate(nil); err != nil || !c.Leaf.Equal(first.Leaf) {
					t.Errorf("%d bytes free: not the certificate of before: %v", free*100, err)
				}
			}
			if n := strings.Count(log.String(), "level=WARN"); n == 0 || n > 2 { // one for each file
				t.Errorf("%d bytes free: said %d times:\n%s", free*100, n, &log)
			}
			if c, err := serving().GetCertificate(nil); err != nil || !c.Leaf.Equal(first.Leaf) {
				t.Errorf("%d bytes free: an agent that starts meanwhile: %v", free*100, err)
			}
			mend()
			if c, err := s.GetCertificate(nil); err != nil || c.Leaf.VerifyHostname("192.0.2.2") != nil {
				t.Errorf("%d bytes free: then: %v", free*100, err)
			}
		})
	}
}

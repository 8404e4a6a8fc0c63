package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"testing"
	"testing/synctest"
	"time"
)

// A certificate that seemed to have ended while the host's clock was ahead is in force again when
// that is right, and who waits is told.
func TestWaitSeesThatTheClockWasSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRotation(RotationConfig{Name: "client certificate"})
		leaf := &x509.Certificate{NotAfter: time.Now()}
		r.schedule(&tls.Certificate{Leaf: leaf})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		waited := make(chan error)
		go func() { waited <- r.Wait(ctx) }()
		synctest.Wait()
		r.mu.Lock()
		leaf.NotAfter = time.Now().AddDate(10, 0, 0) // as when the clock is set back
		r.mu.Unlock()
		if err := <-waited; err != nil {
			t.Error(err)
		}
	})
}

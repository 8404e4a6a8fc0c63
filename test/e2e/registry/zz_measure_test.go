//go:build e2e

package registry

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"
)

func cpu(pid int) time.Duration {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	var sum time.Duration
	for _, f := range files {
		b, _ := os.ReadFile(f)
		var ns int64
		fmt.Sscan(string(b), &ns)
		sum += time.Duration(ns)
	}
	return sum
}

func mem(pid int) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	return fmt.Sprint(regexp.MustCompile(`(?m)^(Pss|Pss_Anon|Rss): +(\d+)`).FindAllString(string(b), -1))
}

func TestMeasure(t *testing.T) {
	for range 5 {
		t.Run("", func(t *testing.T) {
			s := newServer(t)
			own := cpu(os.Getpid())
			begin := time.Now()
			s.create("/api/v1/namespaces", `{"metadata":{"name":"default"}}`)
			t.Log("first object: child CPU", cpu(s.child()), "agent CPU", cpu(os.Getpid())-own, "wall", time.Since(begin), mem(s.child()))
			s.create("/api/v1/namespaces/default/serviceaccounts", `{"metadata":{"name":"default"}}`)
			s.create("/api/v1/namespaces/default/pods", `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}`)
			t.Log("and account and pod: child CPU", cpu(s.child()), mem(s.child()))
		})
	}
	t.Run("many", func(t *testing.T) {
		s := newServer(t)
		s.first()
		before, own := cpu(s.child()), cpu(os.Getpid())
		for i := range 2000 {
			kind, body := "configmaps", `{"metadata":{"name":"m%d"},"data":{"k":"v"}}`
			if i%2 == 0 {
				kind, body = "pods", `{"metadata":{"name":"p%d"},"spec":{"containers":[{"name":"c","image":"i"},{"name":"d","image":"i"}]}}`
			}
			s.create("/api/v1/namespaces/default/"+kind, fmt.Sprintf(body, i))
		}
		t.Log("a create: child CPU", (cpu(s.child())-before)/2000, "agent", (cpu(os.Getpid())-own)/2000, mem(s.child()))
		b := cpu(s.child())
		s.ask("GET", "/openapi/v2", "")
		t.Log("openapi v2: child CPU", cpu(s.child())-b, mem(s.child()))
	})
}

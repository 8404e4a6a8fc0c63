//go:build e2e

package e2e

import (
	"bufio"
	"cmp"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// nodeRequests returns how many requests of nodes the API server has served, by its own count:
// reports and leases, and all others. Its flow schemas, which are of the defaults, tell nodes from
// everybody else.
func (c *cluster) nodeRequests() (reports, others int) {
	c.t.Helper()
	line := regexp.MustCompile(`^apiserver_flowcontrol_dispatched_requests_total\{flow_schema="(system-node-high|system-nodes)",.*\} (\S+)$`)
	lines := bufio.NewScanner(strings.NewReader(c.kubectl("get", "--raw", "/metrics")))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		m := line.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		n, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			c.t.Fatal(err)
		}
		if m[1] == "system-node-high" {
			reports += int(n)
		} else {
			others += int(n)
		}
	}
	if err := lines.Err(); err != nil {
		c.t.Fatal(err)
	}
	if reports == 0 {
		c.t.Fatal("the API server counts no requests of nodes")
	}
	return reports, others
}

// doubts counts the pods whose status the control plane has changed, as it took their node for one
// that is not ready. The node reports such a status again.
func (c *cluster) doubts() int {
	c.t.Helper()
	return strings.Count(c.kubectl("get", "events", "--field-selector", "reason=NodeNotReady", "-o", "name"), "\n")
}

// At rest a node asks no more of the API server than a kubelet says it does: a lease in 10 s, a
// status in 5 min, its watches again in 5 to 10 min. BERTH_TRAFFIC, as 2m, counts for longer than
// 20 s.
func TestClusterTrafficAtRest(t *testing.T) {
	span, err := time.ParseDuration(cmp.Or(os.Getenv("BERTH_TRAFFIC"), "20s"))
	if err != nil || span > 2*time.Minute {
		t.Fatalf("BERTH_TRAFFIC must be a duration of at most 2m: %v, %v", span, err)
	}
	c := newCluster(t)
	// As by default; the tests' nodes are given up sooner.
	c.reconfigure("nodeLeaseDurationSeconds: 8", "nodeLeaseDurationSeconds: 40")
	l := c.viaLink()
	c.startMember()
	var names []string
	for i := range 5 {
		names = append(names, fmt.Sprintf("p%d", i))
		c.create(c.helloPod(names[i], "serve"))
	}
	c.awaitAPIReady(names...)
	_, before := c.nodeRequests()
	quiet := 0 // looks in a row that found nothing new
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for quiet < 5 {
		select {
		case <-c.ctx.Done():
			t.Fatal("the node does not come to rest")
		case <-tick.C:
		}
		_, now := c.nodeRequests()
		if quiet++; now != before {
			before, quiet = now, 0
		}
	}

	var reports, others int
	var sent, received int64
	for range 3 {
		doubted := c.doubts()
		reports, others = c.nodeRequests()
		sent, received = l.sent.Load(), l.received.Load()
		c.stays("the pods run", span, func() bool {
			now, err := c.list(c.ctx)
			return err == nil && now.ready(names...)
		})
		moreReports, moreOthers := c.nodeRequests()
		reports, others = moreReports-reports, moreOthers-others
		sent, received = l.sent.Load()-sent, l.received.Load()-received
		if c.doubts() == doubted {
			break
		}
		t.Log("the control plane took the node for one that is not ready meanwhile")
	}

	minutes := span.Minutes()
	t.Logf("%d pods at rest for %v, by the API server's count and the link's:", len(names), span)
	t.Logf("%-28s %8.2f a minute", "leases and statuses", float64(reports)/minutes)
	t.Logf("%-28s %8.2f a minute", "other requests (watches)", float64(others)/minutes)
	t.Logf("%-28s %8.0f a minute", "bytes sent, with TLS", float64(sent)/minutes)
	t.Logf("%-28s %8.0f a minute", "bytes received, with TLS", float64(received)/minutes)
	renewals, statuses := int(span/(10*time.Second)), int(span/(5*time.Minute))+1
	const watches = 8 // at most, of this node and these pods
	again := watches * (int(span/(5*time.Minute)) + 1)
	if reports < renewals-1 || reports > renewals+1+statuses+again {
		t.Errorf("%d leases and statuses in %v, want %d renewals and %d statuses", reports, span, renewals, statuses)
	}
	if others > again {
		t.Errorf("%d other requests in %v, want at most %d", others, span, again)
	}
}

package metrics

import (
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Handler serves the gatherer's metrics. Concurrent scrapes are limited, and a failed collector
// does not hide the others.
func Handler(g prometheus.Gatherer, log *slog.Logger) http.Handler {
	const atOnce = 4
	return promhttp.HandlerFor(g, promhttp.HandlerOpts{
		ErrorLog: errorLog{log}, ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: atOnce, Timeout: 2 * scrapeLimit,
	})
}

type errorLog struct{ log *slog.Logger }

func (l errorLog) Println(v ...any) { l.log.Warn("metrics not collected", "error", v) }

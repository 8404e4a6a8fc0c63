package metrics

import (
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Handler answers with what the gatherer has. Several scrapes at a time are few, and what could not
// be collected does not hide the rest.
func Handler(g prometheus.Gatherer, log *slog.Logger) http.Handler {
	const atOnce = 4
	return promhttp.HandlerFor(g, promhttp.HandlerOpts{
		ErrorLog: errorLog{log}, ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: atOnce, Timeout: 2 * scrapeLimit,
	})
}

type errorLog struct{ log *slog.Logger }

func (l errorLog) Println(v ...any) { l.log.Warn("metrics not collected", "error", v) }

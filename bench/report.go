package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// figure is one measured quantity; several values are repetitions.
type figure struct {
	Who    string    `json:"who"` // floor, stock floor, berth, peer, shims, podshims, scale
	What   string    `json:"what"`
	Unit   string    `json:"unit"`
	Values []float64 `json:"values"`
}

// median returns the median of the values, the mean of the middle two for an even number.
func (f figure) median() float64 {
	v := slices.Sorted(slices.Values(f.Values))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// goal is a figure, or a value computed from figures, and its limit.
type goal struct {
	What  string  `json:"what"`
	Unit  string  `json:"unit"`
	Limit float64 `json:"limit"`
	Value float64 `json:"value"`
}

// verdict reports whether the goal is met.
func (g goal) verdict() string {
	if g.Value > g.Limit {
		return "**does not hold**"
	}
	return "holds"
}

// report is the result of a run.
type report struct {
	options options
	mu      sync.Mutex // guards Figures
	Began   time.Time  `json:"began"`
	CPUs    int        `json:"cpus"`
	// Load is the machine's load average before the run, which may affect the figures.
	Load    string   `json:"load"`
	Figures []figure `json:"figures"`
	Goals   []goal   `json:"goals"`
}

func newReport(o options) *report {
	load, _ := os.ReadFile("/proc/loadavg") // optional in the report
	return &report{options: o, Began: time.Now(), CPUs: runtime.NumCPU(), Load: strings.TrimSpace(string(load))}
}

// add adds a figure, or values to an existing one.
func (r *report) add(who, what, unit string, values ...float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.Figures {
		if f := &r.Figures[i]; f.Who == who && f.What == what {
			f.Values = append(f.Values, values...)
			return
		}
	}
	r.Figures = append(r.Figures, figure{Who: who, What: what, Unit: unit, Values: values})
}

func seconds(durations []time.Duration) []float64 {
	var all []float64
	for _, d := range durations {
		all = append(all, d.Seconds())
	}
	return all
}

func (r *report) floor(who, what string, took ...time.Duration) {
	r.add(who, what, "s", seconds(took)...)
}

func (r *report) agent(kind agentKind, what string, took ...time.Duration) {
	r.add(kind.name, what, "s", seconds(took)...)
}

// peakRSS is the peak RSS of the agent from its start until it was idle with the given pods.
const peakRSS = "from the start to rest with %s: RSS of the agent at most"

// rest adds the usage between two readings.
func (r *report) rest(kind agentKind, pods, who string, before, after usage, took time.Duration) {
	at := fmt.Sprintf("at rest with %s: %%s of %s", pods, who)
	const mib = 1 << 20
	r.add(kind.name, fmt.Sprintf(at, "CPU"), "% of a core", 100*(after.CPU-before.CPU).Seconds()/took.Seconds())
	r.add(kind.name, fmt.Sprintf(at, "wake-ups"), "/s", float64(after.Wakeups-before.Wakeups)/took.Seconds())
	r.add(kind.name, fmt.Sprintf(at, "RSS"), "MiB", float64(after.RSS)/mib)
	r.add(kind.name, fmt.Sprintf(at, "RssAnon"), "MiB", float64(after.RssAnon)/mib)
	r.add(kind.name, fmt.Sprintf(at, "PSS"), "MiB", float64(after.PSS)/mib)
	if who == "agent" {
		r.add(kind.name, fmt.Sprintf(peakRSS, pods), "MiB", float64(after.PeakRSS)/mib)
	}
}

// find returns the median of a measured figure.
func (r *report) find(who, what string) (float64, bool) {
	for _, f := range r.Figures {
		if f.Who == who && f.What == what && len(f.Values) > 0 {
			return f.median(), true
		}
	}
	return 0, false
}

// computeGoals computes the goals whose figures were measured.
func (r *report) computeGoals() {
	n := r.options.pods
	set := func(what, unit string, limit float64, value func(float64, float64) float64, who1, what1, who2, what2 string) {
		a, ok := r.find(who1, what1)
		b, ok2 := r.find(who2, what2)
		if ok && (ok2 || who2 == "") {
			r.Goals = append(r.Goals, goal{What: what, Unit: unit, Limit: limit, Value: value(a, b)})
		}
	}
	ratio := func(a, b float64) float64 { return a / b }
	less := func(a, b float64) float64 { return a - b }
	itself := func(a, _ float64) float64 { return a }
	set(fmt.Sprintf("%d pods, manifest to Ready visible: times the floor of %d at a time", n, ratioParallel), "×", 1.10, ratio,
		"berth", fmt.Sprintf("%d pods: all Ready in /pods", n), "floor", fmt.Sprintf("%d pods, %d at a time", n, ratioParallel))
	read := fmt.Sprintf(readyWhileRead, n)
	set(fmt.Sprintf("%s, times the floor of %d at a time", read, ratioParallel), "×", 1.05, ratio,
		"berth", read, "floor", fmt.Sprintf("%d pods, %d at a time", n, ratioParallel))
	set(fmt.Sprintf(cpuWhileRead, n), "s", 1.5, itself, "berth", fmt.Sprintf(cpuWhileRead, n), "", "")
	set("1 pod, manifest to Ready visible: times the floor", "×", 1.25, ratio,
		"berth", "1 pod: manifest to Ready in /pods", "floor", "1 pod: sandbox, create, start")
	set("exit to its replacement started, over the runtime's create and start", "s", 0.12, less,
		"berth", "container exit to its replacement started", "floor", "1 container more: create, start")
	batch := fmt.Sprintf("%d pods, %d at a time", n, ratioParallel)
	for _, part := range []struct {
		what  string
		limit float64
	}{{"", 0.85}, {": CPU of a start", 0.9}, {": CPU of a stop", 0.7}} {
		set("the floor: "+batch+part.what+", times that of the stock floor", "×", part.limit, ratio, ownFloor, batch+part.what, stockFloor, batch+part.what)
	}
	set(apiMemory, "MiB", 28, itself, "berth", apiMemory, "", "")
	set(apiCPU, "% of a core", 0.1, itself, "berth", apiCPU, "", "")
	set(apiStart+", over that without objects", "s", 0.5, less, "berth", apiStart, "berth", emptyStart)
	for _, form := range []string{"JSON", "protobuf"} {
		set(fmt.Sprintf(apiList, form), "s", 0.3, itself, "berth", fmt.Sprintf(apiList, form), "", "")
	}
	at := fmt.Sprintf("at rest with %d pods: ", n)
	set(at+"CPU of the agent", "% of a core", 0.1, itself, "berth", at+"CPU of agent", "", "")
	set(at+"CPU of agent, runtime and shims", "% of a core", 0.5, itself, "berth", at+"CPU of agent, runtime and shims", "", "")
	set(at+"RSS of the agent", "MiB", 40, itself, "berth", at+"RSS of agent", "", "")
	set("without pods: RSS of the agent", "MiB", 28, itself, "berth", "at rest with 0 pods: RSS of agent", "", "")
	set(fmt.Sprintf(peakRSS, count(0)), "MiB", 32, itself, "berth", fmt.Sprintf(peakRSS, count(0)), "", "")
	set(fmt.Sprintf(peakRSS, count(n)), "MiB", 45, itself, "berth", fmt.Sprintf(peakRSS, count(n)), "", "")
	set(fmt.Sprintf(peakOfMember, count(0)), "MiB", 32, itself, "berth", fmt.Sprintf(peakOfMember, count(0)), "", "")
	set(fmt.Sprintf(peakOfMember, count(n)), "MiB", 45, itself, "berth", fmt.Sprintf(peakOfMember, count(n)), "", "")
	set(fmt.Sprintf("start of the agent over %d pods to all Ready visible", n), "s", 1, itself,
		"berth", fmt.Sprintf("%d pods: start of the agent to all Ready in /pods", n), "", "")
	// The kubelet's periods: a lease in 10 s, a status and each watch in 5 min; a short run may
	// contain one more.
	minutes := r.options.rest.Minutes()
	set(trafficReports, "/min", 6.2+2/minutes, itself, "berth", trafficReports, "", "")
	set(trafficOthers, "/min", 8*(0.2+1/minutes), itself, "berth", trafficOthers, "", "")
	many := fmt.Sprintf("%d followers and %d commands: ", followers, sessions)
	set(many+"RssAnon at most, over that before", "MiB", 2*(followers+sessions), less, "berth", many+"RssAnon at most", "berth", many+"RssAnon before")
	set(many+"goroutines left", "", settled, less, "berth", many+"goroutines after", "berth", many+"goroutines before")
	set(many+"open files left", "", settled, less, "berth", many+"open files after", "berth", many+"open files before")
	r.computePodshimGoals()
	sizes := strings.Split(r.options.scale, ",")
	if len(sizes) > 1 {
		small, large := sizes[0], sizes[len(sizes)-1]
		set(fmt.Sprintf("%s pods over the fake runtime: %s", large, scaleIdle), "", 10, itself, "scale", large+" pods: "+scaleIdle, "", "")
		for _, f := range scaleFigures {
			set(fmt.Sprintf("%s pods over the fake runtime: %s, times that of %s", large, f.name, small), "×", 1.2, ratio,
				"scale", large+" pods: "+f.name, "scale", small+" pods: "+f.name)
		}
	}
}

// write writes the report in its three formats.
func (r *report) write() error {
	r.computeGoals()
	if err := os.MkdirAll(r.options.out, 0o755); err != nil {
		return err
	}
	b, err := json.MarshalIndent(r, "", "  ")
	text := r.markdown()
	fmt.Print(text)
	file := func(name string, content []byte) error {
		return os.WriteFile(filepath.Join(r.options.out, name), content, 0o644)
	}
	return errors.Join(err, file("report.json", append(b, '\n')), file("report.md", []byte(text)), file("report.svg", []byte(r.svg())))
}

func (r *report) markdown() string {
	var w strings.Builder
	fmt.Fprintf(&w, "%s, %d CPUs, load before the run %s\n\n", r.Began.UTC().Format("2006-01-02 15:04 UTC"), r.CPUs, r.Load)
	if len(r.Goals) > 0 {
		w.WriteString("| goal | at most | is | |\n|---|---:|---:|---|\n")
		for _, g := range r.Goals {
			fmt.Fprintf(&w, "| %s | %.3g %s | %.3g %s | %s |\n", g.What, g.Limit, g.Unit, g.Value, g.Unit, g.verdict())
		}
		w.WriteString("\n")
	}
	w.WriteString("| who | what | median | least | most | |\n|---|---|---:|---:|---:|---|\n")
	for _, f := range r.Figures {
		if len(f.Values) > 0 {
			fmt.Fprintf(&w, "| %s | %s | %.3f | %.3f | %.3f | %s |\n", f.Who, f.What, f.median(), slices.Min(f.Values), slices.Max(f.Values), f.Unit)
		}
	}
	return w.String()
}

// svg draws each goal as a bar: its value relative to its limit, which is the line.
func (r *report) svg() string {
	const row, text, unit, most = 26, 560, 160, 3.0
	var w strings.Builder
	height := row * (len(r.Goals) + 1)
	fmt.Fprintf(&w, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="13">`+"\n", text+int(unit*most)+90, height+10)
	for i, g := range r.Goals {
		y, part := row*i+10, g.Value/g.Limit
		colour := "#3a7"
		if part > 1 {
			colour = "#c53"
		}
		width := int(unit * min(max(part, 0.01), most))
		fmt.Fprintf(&w, `<text x="%d" y="%d" text-anchor="end">%s</text><rect x="%d" y="%d" width="%d" height="18" fill="%s"/><text x="%d" y="%d">%.3g %s</text>`+"\n",
			text-8, y+14, g.What, text, y, width, colour, text+width+6, y+14, g.Value, g.Unit)
	}
	fmt.Fprintf(&w, `<line x1="%d" y1="0" x2="%d" y2="%d" stroke="#000"/><text x="%d" y="%d">goal</text>`+"\n</svg>\n", text+unit, text+unit, height-row+10, text+unit+4, height)
	return w.String()
}

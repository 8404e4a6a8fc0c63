package agent

// condition is one declared health condition; /healthz and the command line show this table.
type condition struct {
	code  string
	title string
	check func() error // nil: healthy
}

func (a *Agent) conditions() []condition {
	c := []condition{
		{"PLEG", "PLEG is not healthy", a.pleg.Health},
	}
	if a.embedded != nil {
		c = append(c, condition{"EmbeddedRuntime", "the embedded runtime is not healthy", a.embedded.Health})
	}
	return c
}

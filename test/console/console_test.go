package console

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const page = `# A page

~~~console
$ echo one \
> two
one two
$ cat > f <<'EOF'
$ not a command
EOF
$ cat f
$ not …
~~~

<!-- run by: TestThat -->
~~~sh
# a comment

true
~~~

<!-- not run: it takes a day -->

- in a list

  ~~~sh
  false
  ~~~
`

func TestParse(t *testing.T) {
	blocks, err := Parse("p.md", strings.ReplaceAll(page, "~~~", "```"))
	if err != nil {
		t.Fatal(err)
	}
	if len(blocks) != 3 || blocks[1].RunBy != "TestThat" || blocks[0].RunBy != "" || blocks[2].NotRun != "" {
		t.Fatalf("got %+v", blocks)
	}
	commands, err := blocks[0].Split()
	if err != nil {
		t.Fatal(err)
	}
	want := []Command{
		{4, "echo one \\\ntwo", []string{"one two"}},
		{7, "cat > f <<'EOF'\n$ not a command\nEOF", nil},
		{10, "cat f", nil},
		{11, "not …", nil},
	}
	if diff := cmp.Diff(want, commands); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for i, text := range map[int]string{1: "true", 2: "false"} {
		if c, err := blocks[i].Split(); err != nil || len(c) != 1 || c[0].Text != text {
			t.Errorf("got %+v, %v", c, err)
		}
	}
	for _, bad := range []string{"```sh\ntrue\n", "```console\ntrue\n```\n", "```sh\n# none\n```\n"} {
		blocks, err := Parse("p.md", bad)
		if err == nil {
			_, err = blocks[0].Split()
		}
		if err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestCompare(t *testing.T) {
	for _, c := range []struct {
		want, got string
		same      bool
	}{
		{"a", "a\n", true},
		{"a", "a\nb", false},
		{"a\n…", "a\nb\nc", true},
		{"a\n…\nc", "a\nc", true},
		{"a\n…\nd", "a\nb\nc", false},
		{"web   Running   4s", "web  Running  1m30s", true},
		{"web   Running   4s", "web  Pending  4s", false},
		{"at 03:04:05 of 10.88.0.2", "at 23:59:59.123 of 10.89.1.20", true},
		{"exit code … (Error)", "exit code 137 (Error)", true},
		{"3 restarts", "4 restarts", false},
		{"a.c", "abc", false},
	} {
		if err := Compare(strings.Split(c.want, "\n"), c.got); (err == nil) != c.same {
			t.Errorf("%q and %q: %v", c.want, c.got, err)
		}
	}
}

func TestSession(t *testing.T) {
	s, err := Start(t.TempDir(), "GREETING=hello")
	if err != nil {
		t.Fatal(err)
	}
	s.Patience = 10 * time.Second
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, c := range []struct{ block, wrong string }{
		{"$ echo $GREETING\nhello", ""},
		{"$ mkdir d && cd d\n$ pwd\n…/d", ""},
		{"$ { sleep 0.1; echo late; sleep 100; } &\nlate", ""},
		{"$ false", "exit code 1"},
		{"$ echo Error: no; false\nError: no", ""},
		{"$ echo one\ntwo", "the page shows\ntwo\nand it printed\none"},
		{"$ cat", ""}, // has no input
	} {
		err := s.Run(t.Context(), Block{File: "p.md", Lang: "console", Text: strings.Split(c.block, "\n")})
		if c.wrong == "" && err != nil || c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) {
			t.Errorf("%q: got %v, want %q", c.block, err, c.wrong)
		}
	}
}

// A shell that ends, and a command that does not, are errors.
func TestSessionThatEnds(t *testing.T) {
	for _, c := range []struct{ command, wrong string }{
		{"exit 3", "the shell has ended"},
		{"sleep 100", "it has not ended after"},
	} {
		s, err := Start(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		s.Patience = 500 * time.Millisecond
		err = s.Run(t.Context(), Block{Lang: "sh", Text: []string{c.command}})
		if err == nil || !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%s: got %v", c.command, err)
		}
		_ = s.Close() // the shell was killed, or is gone
	}
}

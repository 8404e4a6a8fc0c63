package rules

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strings"
)

// glossary is the page that defines the terms, and lists the words that have a better one.
const glossary = "docs/glossary.md"

// avoided is a word that is refused, and what stands in its place.
type avoided struct {
	word    *regexp.Regexp
	instead string
}

// avoidedWords reads the table of words to avoid: a row has words in backquotes, and what to use.
func avoidedWords(lines []string) (words []avoided, bad []string) {
	in := false
	for i, line := range lines {
		if strings.HasPrefix(line, "## ") {
			in = line == "## Words to avoid"
		}
		cells := strings.Split(line, "|")
		if !in || len(cells) != 4 || !strings.Contains(cells[1], "`") {
			continue
		}
		if strings.TrimSpace(cells[2]) == "" {
			bad = append(bad, fmt.Sprintf("%s:%d: a word without a replacement", glossary, i+1))
		}
		for _, quoted := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[1], -1) {
			words = append(words, avoided{regexp.MustCompile(`(?i)(^|[^\w'])` + regexp.QuoteMeta(quoted[1]) + `($|[^\w'])`), strings.TrimSpace(cells[2])})
		}
	}
	if len(words) == 0 {
		bad = append(bad, glossary+": no words to avoid are found")
	}
	return words, bad
}

// checkVocabulary finds avoided words in string literals of product code and in package docs.
func checkVocabulary(t tree) []string {
	words, found := avoidedWords(t.text(glossary))
	e := excusesOf("vocabulary")
	report := func(f source, p token.Pos, text string) {
		for _, a := range words {
			if m := a.word.FindString(text); m != "" && !e.allows(f.path) {
				found = append(found, fmt.Sprintf("%s%q: use %s", f.at(p), strings.Trim(m, ` "().,:;`), a.instead))
			}
		}
	}
	for _, f := range t.allGoFiles() {
		if _, supports := testSupport[f.dir()]; supports || f.isTest() || within(f.dir(), "test") || within(f.dir(), "bench") {
			continue
		}
		if f.ast.Doc != nil {
			report(f, f.ast.Doc.Pos(), f.ast.Doc.Text())
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				report(f, lit.Pos(), lit.Value)
			}
			return true
		})
	}
	found = append(found, e.idle(t)...)
	slices.Sort(found)
	return found
}

package config

import "strings"

// Nearest returns the candidate of which name is most likely a typo, or "" if none is similar.
func Nearest(name string, candidates []string) string {
	best, bestDistance := "", 1+max(1, len(name)/4)
	for _, c := range candidates {
		if d := EditDistance(strings.ToLower(name), strings.ToLower(c)); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

// EditDistance returns the number of byte insertions, deletions, replacements and transpositions
// that turn a into b (optimal string alignment).
func EditDistance(a, b string) int {
	before, above, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before, above, row = above, row, before
		row[0] = i + 1
		for j := range len(b) {
			replace := above[j]
			if a[i] != b[j] {
				replace++
			}
			row[j+1] = min(replace, row[j]+1, above[j+1]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return row[len(b)]
}

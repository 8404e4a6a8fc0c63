package config

import "strings"

// nearest returns the candidate that name is most likely a slip of, or "" if none is near.
func nearest(name string, candidates []string) string {
	best, bestDistance := "", 1+max(1, len(name)/4)
	for _, c := range candidates {
		if d := EditDistance(strings.ToLower(name), strings.ToLower(c)); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

// EditDistance is the number of bytes to insert, remove or replace that turn a into b
// (Levenshtein).
func EditDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

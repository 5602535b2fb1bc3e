//go:build !race

package validation

const raceNoise = 0

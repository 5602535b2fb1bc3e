//go:build !race

package registry_test

const raceNoise = 0

//go:build race

package validation

// raceNoise is what the race detector adds: with it sync.Pool drops things at random, and validator makes them anew.
const raceNoise = 1

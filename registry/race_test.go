//go:build race

package registry_test

// raceNoise is what the race detector adds: with it sync.Pool drops things at random, and validator and zap make them anew.
const raceNoise = 2

//go:build vettool

package docs_test

// vettool says that the command lines of docs/vet.md are run too. The analyzer reads the standard library, which takes a minute, as the
// tests of package vet with the same tag do: go test -tags vettool -run CommandLine ./docs.
const vettool = true

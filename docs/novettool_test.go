//go:build !vettool

package docs_test

const vettool = false

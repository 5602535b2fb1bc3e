//go:build vettool

// The rules read the sources of all that the testdata imports, which takes a minute: go test -tags vettool ./registry/vet/...

package vet_test

import (
	"testing"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/analysistest"

	"github.com/tekil-go/tekil/registry/vet"
)

func TestEveryRuleFindsItsFaultAndNothingElse(t *testing.T) {
	t.Parallel()
	for _, rule := range vet.Analyzers {
		t.Run(rule.Name, func(t *testing.T) {
			t.Parallel()
			analysistest.Run(t, analysistest.TestData(), rule, rule.Name)
		})
	}
}

func TestHandlersThatAnotherPackageRegistersAreJudgedThere(t *testing.T) {
	t.Parallel()
	analysistest.Run(t, analysistest.TestData(), ruleNamed(t, "poolinatomic"), "poolinatomic/orders", "poolinatomic/wiring")
}

func ruleNamed(t *testing.T, name string) *analysis.Analyzer {
	t.Helper()
	for _, a := range vet.Analyzers {
		if a.Name == name {
			return a
		}
	}
	t.Fatalf("no rule %s", name)
	return nil
}

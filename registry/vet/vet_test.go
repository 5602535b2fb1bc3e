package vet_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/tools/go/analysis"

	"github.com/tekil-go/tekil/registry/vet"
)

func Example() {
	for _, rule := range vet.Analyzers {
		first, _, _ := strings.Cut(rule.Doc, "\n")
		fmt.Printf("%s: %s\n", rule.Name, first)
	}
	// Output:
	// freshkey: report an idempotency key that the receiving side makes up
	// poolinatomic: report a statement of an Atomic handler that is not in its transaction
	// outsideinatomic: report a call over the network in an Atomic handler
	// commitinhandler: report a handler that ends the transaction itself
	// unstablefield: report a field of a command that is another one in every attempt
	// payloadinlog: report a marked command that is written to a log whole
	// lostdownstream: report a Leased handler that calls out without a downstream key
	// swallowederror: report a statement in a handler's transaction whose error is dropped
}

func TestEveryRuleIsValidAndHasASectionInTheManual(t *testing.T) {
	t.Parallel()
	if err := analysis.Validate(vet.Analyzers); err != nil {
		t.Error(err)
	}
	manual, err := os.ReadFile("../../docs/vet.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, rule := range vet.Analyzers {
		if !strings.Contains(string(manual), "\n## "+rule.Name+"\n") || !strings.HasSuffix(rule.URL, "docs/vet.md#"+rule.Name) {
			t.Errorf("%s has no section, or its address %s is another one", rule.Name, rule.URL)
		}
	}
}

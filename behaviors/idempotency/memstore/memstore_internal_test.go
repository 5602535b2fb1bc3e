package memstore

import (
	"strings"
	"testing"
)

func TestBR19_StoreIsRefusedOutsideTests(t *testing.T) {
	t.Parallel()
	warnings, err := New().check(false)
	if err == nil || warnings != nil || !strings.Contains(err.Error(), "for tests") {
		t.Errorf("outside a test: %q, %v", warnings, err)
	}
	warnings, err = NewWithConfig(Config{AllowOutsideTests: true}).check(false)
	if err != nil || len(warnings) != 1 {
		t.Errorf("outside a test, where that is allowed: %q, %v", warnings, err)
	}
	warnings, err = New().Check(t.Context())
	if err != nil || warnings != nil {
		t.Errorf("in a test: %q, %v", warnings, err)
	}
}

package validation

import (
	"reflect"
	"strings"
	"testing"
)

func TestBR54_AMalformedStructTagIsFoundAtBuild(t *testing.T) {
	t.Parallel()
	v, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	malformed := reflect.StructOf([]reflect.StructField{{Name: "A", Type: reflect.TypeFor[string](), Tag: `json:"a" validate: "required"`}})
	if err := inspect(v, "test.command", malformed); err == nil || !strings.Contains(err.Error(), "malformed") {
		t.Errorf("got %v", err)
	}
}

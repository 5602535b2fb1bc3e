//go:build goexperiment.jsonv2

package strictjson_test

import (
	"encoding/json/jsontext"
	"errors"
	"testing"

	"github.com/tekil-go/tekil/requestctx/internal/strictjson"
)

// streamed decodes itself in the way that exists under GOEXPERIMENT=jsonv2 only.
type streamed struct{ kind string }

func (s *streamed) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	v, err := d.ReadValue()
	s.kind = v.Kind().String()
	return err
}

func TestDecode_ATypeThatDecodesFromAStreamIsTakenAsItComes(t *testing.T) {
	t.Parallel()
	var v []streamed
	if err := strictjson.Decode([]byte(`[{"any":1},"x"]`), &v); err != nil || len(v) != 2 || v[0].kind != "{" {
		t.Errorf("got %v, %+v", err, v)
	}
	var e *strictjson.Error
	if err := strictjson.Decode([]byte(`[{"any":1,"any":2}]`), &v); !errors.As(err, &e) || e.Path != "[0][*]" {
		t.Errorf("got %v", err)
	}
}

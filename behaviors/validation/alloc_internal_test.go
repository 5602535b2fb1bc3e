package validation

import (
	"context"
	"testing"

	"github.com/go-playground/validator/v10"
)

type bareCommand struct {
	A string
	B int
}

type taggedCommand struct {
	CartID   string `json:"cart_id" validate:"required"`
	Amount   int64  `json:"amount" validate:"gt=0"`
	Currency string `json:"currency" validate:"iso4217"`
	Lines    []struct {
		SKU string `json:"sku" validate:"required"`
		Qty int    `json:"qty" validate:"gt=0"`
	} `json:"lines" validate:"max=100,dive"`
}

type checkedCommand struct{ Amount int64 }

func (c checkedCommand) Normalize() checkedCommand { return c }

func (c *checkedCommand) Validate() error {
	if c.Amount == 0 {
		return Field("amount", "gt", "must be greater than 0")
	}
	return nil
}

func tagged() taggedCommand {
	cmd := taggedCommand{CartID: "c1", Amount: 1, Currency: "TRY"}
	cmd.Lines = append(cmd.Lines, struct {
		SKU string `json:"sku" validate:"required"`
		Qty int    `json:"qty" validate:"gt=0"`
	}{"a", 1})
	return cmd
}

func TestACommandWithNothingToCheckHasNoStage(t *testing.T) {
	t.Parallel()
	validate, err := compile[bareCommand](nil, "test.bare")
	if err != nil || validate != nil {
		t.Errorf("got a function (%t) and %v, want none", validate != nil, err)
	}
}

// Not parallel: testing.AllocsPerRun counts the allocations of the whole process.
func TestTheStageAllocatesOnceBesideValidator(t *testing.T) {
	ctx := context.Background()
	plain := validator.New(validator.WithRequiredStructEnabled())
	cmd := tagged()
	ofValidator := testing.AllocsPerRun(1000, func() { _ = plain.StructCtx(ctx, &cmd) })

	validate, err := compile[taggedCommand](nil, "test.tagged")
	if err != nil {
		t.Fatal(err)
	}
	if got := testing.AllocsPerRun(1000, func() { _, _ = validate(ctx, cmd) }); got > ofValidator+1+raceNoise {
		t.Errorf("%v allocations with tags, want at most validator's %v and one", got, ofValidator)
	}

	check, err := compile[checkedCommand](nil, "test.checked")
	if err != nil {
		t.Fatal(err)
	}
	if got := testing.AllocsPerRun(1000, func() { _, _ = check(ctx, checkedCommand{1}) }); got > 1 {
		t.Errorf("%v allocations with Normalize and Validate, want at most one", got)
	}
}

// BenchmarkStage measures a valid command through the stage, beside validator alone on the same struct.
func BenchmarkStage(b *testing.B) {
	ctx := context.Background()
	cmd := tagged()
	b.Run("validator alone", func(b *testing.B) {
		plain := validator.New(validator.WithRequiredStructEnabled())
		b.ReportAllocs()
		for b.Loop() {
			_ = plain.StructCtx(ctx, &cmd)
		}
	})
	b.Run("stage", func(b *testing.B) {
		validate, err := compile[taggedCommand](nil, "test.tagged")
		if err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		for b.Loop() {
			_, _ = validate(ctx, cmd)
		}
	})
	invalid := cmd
	invalid.Amount, invalid.Currency = 0, "x"
	b.Run("validator alone, two fields refused", func(b *testing.B) {
		plain := validator.New(validator.WithRequiredStructEnabled())
		b.ReportAllocs()
		for b.Loop() {
			_ = plain.StructCtx(ctx, &invalid)
		}
	})
	b.Run("stage, two fields refused", func(b *testing.B) {
		validate, err := compile[taggedCommand](nil, "test.tagged")
		if err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		for b.Loop() {
			_, _ = validate(ctx, invalid)
		}
	})
	b.Run("own Validate alone", func(b *testing.B) {
		validate, err := compile[checkedCommand](nil, "test.checked")
		if err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		for b.Loop() {
			_, _ = validate(ctx, checkedCommand{1})
		}
	})
	b.Run("at build", func(b *testing.B) {
		v, err := New(Config{})
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			_, _ = compile[taggedCommand](v, "test.tagged")
		}
	})
}

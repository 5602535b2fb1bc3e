package validation_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-playground/validator/v10"

	"github.com/tekil-go/tekil/behaviors/validation"
	"github.com/tekil-go/tekil/bus"
)

// Transfer is a command that uses all three steps.
type Transfer struct {
	From     string    `json:"from" validate:"required"`
	To       string    `json:"to" validate:"required,nefield=From"`
	Amount   int64     `json:"amount" validate:"gt=0"`
	Earliest time.Time `json:"earliest"`
	Latest   time.Time `json:"latest"`
}

// CommandName ties the command to its result.
func (Transfer) CommandName() bus.Name[bus.None] { return "bank.transfer" }

// Normalize gives the form that is validated, hashed and handled.
func (t Transfer) Normalize() Transfer {
	t.From, t.To = strings.TrimSpace(t.From), strings.TrimSpace(t.To)
	return t
}

// Validate checks what tags can't say.
func (t Transfer) Validate() error {
	if t.Latest.Before(t.Earliest) {
		return validation.Field("latest", "after_earliest", "must not be before earliest")
	}
	return nil
}

// validated makes a bus of the one command.
func validated[C bus.Command[bus.None]](v *validation.Validator) (*bus.Bus, error) {
	var cmd C
	inv := bus.Invocation{Name: string(cmd.CommandName())}
	handler := func(_ context.Context, cmd C) (bus.None, error) {
		fmt.Printf("handled %+v\n", cmd)
		return bus.None{}, nil
	}
	way, err := validation.Stage(v, bus.Claim(handler, nil), inv, nil)
	if err != nil {
		return nil, err
	}
	return bus.New(bus.Serve(bus.Log(way, inv, nil, nil)))
}

func ExampleStage() {
	b, err := validated[Transfer](nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = bus.Send(context.Background(), b, Transfer{From: " a ", To: "a"})
	fmt.Println(err)

	var invalid *validation.Error
	if errors.As(err, &invalid) {
		for _, f := range invalid.Fields {
			fmt.Println(f.Path, f.Message)
		}
	}
	// Output:
	// validation: bank.transfer is not valid: to (nefield), amount (gt)
	// to must not be equal to from
	// amount must be greater than 0
}

// Pick has a list whose elements have rules that nobody would look at.
type Pick struct {
	Items []struct {
		SKU string `json:"sku" validate:"requird"`
	} `json:"items" validate:"required"`
}

// CommandName ties the command to its result.
func (Pick) CommandName() bus.Name[bus.None] { return "stock.pick" }

func ExampleTypeError() {
	_, err := validated[Pick](nil)
	for _, problem := range err.(interface{ Unwrap() []error }).Unwrap() {
		var wrong *validation.TypeError
		if errors.As(problem, &wrong) {
			fmt.Printf("%s %q\n", wrong.Field, wrong.Tag)
		}
	}
	// Output:
	// Items "required"
	// Items[].SKU "requird"
}

// Restock uses a rule that the application registers.
type Restock struct {
	SKU string `json:"sku" validate:"sku"`
}

// CommandName ties the command to its result.
func (Restock) CommandName() bus.Name[bus.None] { return "stock.restock" }

func ExampleNew() {
	rules := validator.New(validator.WithRequiredStructEnabled())
	_ = rules.RegisterValidation("sku", func(fl validator.FieldLevel) bool {
		return strings.HasPrefix(fl.Field().String(), "SKU-")
	})
	v, err := validation.New(validation.Config{Validate: rules})
	if err != nil {
		fmt.Println(err)
		return
	}
	b, err := validated[Restock](v)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = bus.Send(context.Background(), b, Restock{SKU: "4711"})
	fmt.Println(err)
	_, _ = bus.Send(context.Background(), b, Restock{SKU: "SKU-4711"})
	// Output:
	// validation: stock.restock is not valid: sku (sku)
	// handled {SKU:SKU-4711}
}

func ExampleField() {
	err := errors.Join(
		validation.Field("lines[0].qty", "in_stock_unit", "must be a multiple of 6"),
		validation.Field("", "total", "has a total of more than the limit"),
	)
	fmt.Println(err)
	fmt.Println(bus.CodeOf(err))
	// Output:
	// validation: lines[0].qty (in_stock_unit)
	// validation: (total)
	// VALIDATION_FAILED
}

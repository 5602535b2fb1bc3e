package requestctx_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/tekil-go/tekil/requestctx"
)

func ExampleNew() {
	key, err := requestctx.ParseKey("order-2041.attempt")
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, req := requestctx.New(context.Background(), requestctx.Values{
		Key:   key,
		Scope: requestctx.Scope{Client: "acme-erp", Tenant: "acme/1"},
	})
	_ = ctx // goes to bus.Send

	fmt.Println(req.Key(), req.Scope().Client, req.ID() != "")
	// Output: order-2041.attempt acme-erp true
}

func ExampleFrom() {
	handler := func(ctx context.Context) {
		req := requestctx.From(ctx) // nil where there is no request, and usable all the same
		req.SetExternalRef("auth-77")
		req.Add("basket_id", "b-12")
	}

	ctx, req := requestctx.New(context.Background(), requestctx.Values{})
	handler(ctx)
	fmt.Println(req.ExternalRef(), req.Attributes())

	handler(context.Background())
	// Output: auth-77 [{basket_id b-12}]
}

func ExampleParseKey() {
	for _, s := range []string{"order-2041", " order-2041", "short"} {
		key, err := requestctx.ParseKey(s)
		fmt.Printf("%q %v\n", key, err)
	}
	// Output:
	// "order-2041" <nil>
	// "" requestctx: the idempotency key (11 bytes) was refused: the character at position 1 is not one of A-Z a-z 0-9 . _ : -
	// "" requestctx: the idempotency key (5 bytes) was refused: it must have 8 to 128 characters
}

func ExampleKey_Masked() {
	key, err := requestctx.ParseKey("8e03978e-40d5-43e8-bc93-6894a57f9324")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(key.Masked())
	// Output: 8e03…
}

func ExampleRequest_Outcome() {
	_, req := requestctx.New(context.Background(), requestctx.Values{})

	// The pipeline reports; the caller reads after the dispatch.
	req.Report(requestctx.Outcome{State: requestctx.StateReplayed, Replayed: true, OriginalRequestID: "01890000-first"})

	fmt.Println(req.Outcome().Replayed, req.Outcome().OriginalRequestID)
	// Output: true 01890000-first
}

// An edge that learns from the body whose data it is says so between decoding and dispatch.
func ExampleRequest_SetTenant() {
	_, req := requestctx.New(context.Background(), requestctx.Values{Scope: requestctx.Scope{Client: "acme-erp"}})
	req.SetTenant("company-1/organisation-7")
	fmt.Println(req.Scope())
	// Output: {acme-erp company-1/organisation-7}
}

// An edge that learns from the body which draft it is about says so between decoding and dispatch, and support finds the record by it.
func ExampleRequest_SetDraftID() {
	_, req := requestctx.New(context.Background(), requestctx.Values{})
	req.SetDraftID("draft-12")
	fmt.Println(req.DraftID())
	// Output: draft-12
}

// An archive keeps the hash of the body as it came; it goes to the log line too.
func ExampleRequest_SetBodySHA256() {
	_, req := requestctx.New(context.Background(), requestctx.Values{})
	sum := sha256.Sum256([]byte(`{"amount":4990}`))
	req.SetBodySHA256(hex.EncodeToString(sum[:]))
	fmt.Println(req.BodySHA256()[:8], req.Attributes()[0].Name)
	// Output: 2f522593 raw_body_sha256
}

package logging_test

import (
	"testing"

	"go.uber.org/zap"

	"github.com/tekil-go/tekil/behaviors/logging"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

func TestADispatchBeginsWithoutTheOutcomeOfAnEarlierOneOnTheSameContext(t *testing.T) {
	t.Parallel()
	o, err := logging.New(logging.Config{Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, req := requestctx.New(t.Context(), requestctx.Values{})
	req.Report(requestctx.Outcome{State: requestctx.StateReplayed, Replayed: true})
	o.Started(ctx, bus.Invocation{Name: "orders.list", Query: true})
	if req.Outcome().State != requestctx.StateReplayed {
		t.Error("a query has taken the outcome away")
	}
	o.Started(ctx, bus.Invocation{Name: "orders.place", Idempotent: true})
	if got := req.Outcome(); got != (requestctx.Outcome{}) {
		t.Errorf("a command begins with %+v", got)
	}
}

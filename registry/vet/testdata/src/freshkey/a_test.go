package freshkey

import (
	"context"
	"testing"

	"github.com/google/uuid"

	"github.com/tekil-go/tekil/requestctx"
)

func TestSender(t *testing.T) {
	key, _ := requestctx.ParseKey(uuid.NewString())
	requestctx.New(context.Background(), requestctx.Values{Key: key})
}

package payloadinlog

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"log/slog"
	"os"

	"go.uber.org/zap"
)

type Careful struct{ Card string }

func (Careful) CommandName() string    { return "careful" }
func (Careful) Idempotent()            {}
func (c Careful) LogValue() slog.Value { return slog.StringValue("careful") }

func handle(ctx context.Context, l *zap.Logger, s *zap.SugaredLogger, cmd Place, note Note) {
	l.Info("placed", zap.Any("command", cmd)) // want `the command Place is logged whole`
	l.Info("placed", zap.String("cart", cmd.CartID))
	s.Infow("placed", "command", &cmd)                                  // want `the command \*Place is logged whole`
	slog.Info("placed", "command", cmd)                                 // want `logged whole`
	slog.Default().InfoContext(ctx, "placed", slog.Any("command", cmd)) // want `logged whole`
	slog.Info("placed", "command", Careful{}, "cart", cmd.CartID)
	log.Printf("placed %+v", cmd)       // want `logged whole`
	log.Print(Careful{})                // want `the command Careful is logged whole`
	fmt.Println("placed", cmd)          // want `logged whole`
	fmt.Fprintf(os.Stderr, "%v\n", cmd) // want `logged whole`
	fmt.Println("note", note, cmd.Amount)
	_ = fmt.Sprintf("%v", cmd)
	fmt.Fprintln(new(bytes.Buffer), cmd)
}

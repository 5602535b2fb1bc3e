package telemetry

import (
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/tekil-go/tekil/behaviors/internal/fault"
	"github.com/tekil-go/tekil/requestctx"
)

const (
	maxValues = 100 // distinct values of a label that the application chooses
	maxValue  = 64  // bytes of one
	other     = "other"
	none      = "none"
)

// values bounds a label. The first maxValues are taken.
type values struct {
	mu   sync.RWMutex
	seen map[string]struct{}
}

// take gives s, or other where there is no more room or s is too long or no text.
func (v *values) take(s string) string {
	v.mu.RLock()
	_, ok := v.seen[s]
	full := len(v.seen) >= maxValues
	v.mu.RUnlock()
	if ok {
		return s
	}
	if full || len(s) > maxValue || !utf8.ValidString(s) {
		return other
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, ok := v.seen[s]; !ok && len(v.seen) >= maxValues {
		return other
	}
	if v.seen == nil {
		v.seen = map[string]struct{}{}
	}
	s = strings.Clone(s)
	v.seen[s] = struct{}{}
	return s
}

// stateLabel gives a state of the fixed set.
func stateLabel(s requestctx.State) string {
	switch s {
	case requestctx.StateNone:
		return none
	case requestctx.StateExecuted, requestctx.StateReplayed, requestctx.StateInProgress, requestctx.StateConflict,
		requestctx.StateExpired, requestctx.StateFreed, requestctx.StateUnknown, requestctx.StateRefused,
		requestctx.StateUnprotected, requestctx.StateLost, requestctx.StateNested:
		return string(s)
	}
	return other
}

// isFault is true for a panic, and for the codes that are faults in the log as well.
func isFault(code string) bool { return code == "PANIC" || fault.Is(code) }

// isOurs is true for codes that have a label value of their own, however many the application has.
func isOurs(code string) bool {
	switch code {
	case "OK", "CANCELED", "REFUSED", "VALIDATION_FAILED", "IDEMPOTENCY_KEY_MISSING", "IDEMPOTENCY_KEY_INVALID",
		"IDEMPOTENCY_KEY_CONFLICT", "IDEMPOTENCY_KEY_EXPIRED", "IDEMPOTENCY_REQUEST_IN_PROGRESS":
		return true
	}
	return isFault(code)
}

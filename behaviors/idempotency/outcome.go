package idempotency

import (
	"encoding/json"
	"errors"
	"strings"
)

// Final marks err as a deterministic business refusal: an outcome that is stored and replayed like a success, with the
// handler's business rows undone (rule rec-7). Mark only what the same payload will meet every time it is sent under the
// same key; what may pass is left unmarked.
//
// The caller of the first attempt and of every replay gets a [*RefusedError]. Its code is the one that err's tree gives by a
// method Code() string, or "REFUSED"; its message is err.Error(), which is stored and shown to the caller, so it must hold
// nothing secret. An err with a method RefusalData() any adds details that are stored as JSON, unless the policy says otherwise
// ([OmitResult], [SealResult], ResultLimit). Final(nil) is nil.
func Final(err error) error {
	if err == nil {
		return nil
	}
	return &finalError{err}
}

type finalError struct{ err error }

func (e *finalError) Error() string { return e.err.Error() }
func (e *finalError) Unwrap() error { return e.err }

// Code makes a final error that no record has gone between, as that of a command without the mark, answer like any other refusal.
func (e *finalError) Code() string { return e.refusal().Code }

// As gives it as the [*RefusedError] that it would have become. Details that cannot be encoded are left out: nothing is stored.
func (e *finalError) As(target any) bool {
	refused, ok := target.(**RefusedError)
	if ok {
		s := e.refusal()
		data, err := e.details()
		if err != nil {
			data = nil
		}
		*refused = &RefusedError{RefusalCode: s.Code, Message: s.Message, Data: data}
	}
	return ok
}

// details are those that the error brings, as JSON; nil for none.
func (e *finalError) details() (json.RawMessage, error) {
	var detailed interface{ RefusalData() any }
	if !errors.As(e.err, &detailed) {
		return nil, nil
	}
	return json.Marshal(detailed.RefusalData())
}

// Unknown marks err as "nobody knows whether it happened", such as a call to the outside world that timed out. A Leased key then
// stays in progress until its lease is over, the business transaction is rolled back, and the caller gets an
// [*OutcomeUnknownError]. An Atomic handler has no such calls to make: there it is a fault, all is rolled back and the caller gets
// a [*HandlerError].
// Unknown(nil) is nil.
func Unknown(err error) error {
	if err == nil {
		return nil
	}
	return &unknownError{err}
}

type unknownError struct{ err error }

func (e *unknownError) Error() string { return e.err.Error() }
func (e *unknownError) Unwrap() error { return e.err }

// RefusedError is a final business refusal, given to the first caller and to every replay alike. Replays get what was stored, which
// differs only where the policy keeps less of it than all: details left out ([OmitResult]), or a refusal above ResultLimit, of which
// the details and if need be the end of the message are left out. errors.Is(err, target) holds for every target with the same code,
// so an application's own coded error still matches.
type RefusedError struct {
	// Command is the command's name.
	Command string
	// RefusalCode is the application's code, such as "PAYMENT_DECLINED".
	RefusalCode string
	// Message is the application's text for the caller.
	Message string
	// Data holds the application's details as JSON; nil for none.
	Data json.RawMessage
}

func (e *RefusedError) Error() string {
	if e.Command == "" { // no record has gone between
		return "idempotency: refused: " + e.Message
	}
	return "idempotency: " + e.Command + ": refused: " + e.Message
}

// Code is the application's code.
func (e *RefusedError) Code() string { return e.RefusalCode }

// Is reports whether target is an error with the same code.
func (e *RefusedError) Is(target error) bool {
	coded, ok := target.(interface{ Code() string })
	return ok && coded.Code() == e.RefusalCode
}

// defaultRefusalCode is the code of a final error that brings none.
const defaultRefusalCode = "REFUSED"

// storedRefusal is a refusal as it stands in the record.
type storedRefusal struct {
	Code    string          `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
	Sealed  []byte          `json:"sealed,omitempty"` // data as the sealer has it
}

// refusal is what the error says of itself, without its details.
func (e *finalError) refusal() storedRefusal {
	s := storedRefusal{Code: defaultRefusalCode, Message: e.err.Error()}
	var coded interface{ Code() string }
	if errors.As(e.err, &coded) && coded.Code() != "" {
		s.Code = coded.Code()
	}
	return s
}

// refuse gives what the record will hold of a final refusal, and keeps what the first caller gets: all of it.
func (d *dispatch) refuse(final *finalError) ([]byte, error) {
	stored := final.refusal()
	data, err := final.details()
	if err != nil {
		return nil, err
	}
	stored.Data = data
	full, err := json.Marshal(stored)
	if err != nil {
		return nil, err
	}
	if d.refused, _, err = decodeRefusal(d.name, full); err != nil {
		return nil, err
	}
	if d.tooLarge(full) {
		stored.Data = nil
		for {
			if full, err = json.Marshal(stored); err != nil || !d.tooLarge(full) || stored.Message == "" {
				return full, err
			}
			stored.Message = strings.ToValidUTF8(stored.Message[:len(stored.Message)/2], "")
		}
	}
	if stored.Data == nil || d.policy.Results == KeepResult {
		return full, nil
	}
	if d.policy.Results == SealResult {
		if stored.Sealed, err = d.seal(stored.Data, refusalType); err != nil {
			return nil, err
		}
	}
	stored.Data = nil
	return json.Marshal(stored)
}

// refusalOf reads the refusal of a record.
func (d *dispatch) refusalOf(rec *Record) (*RefusedError, error) {
	refused, sealed, err := decodeRefusal(d.name, rec.Result)
	if err != nil || sealed == nil {
		return refused, err
	}
	refused.Data, err = d.open(sealed, refusalType, rec)
	return refused, err
}

// decodeRefusal reads a refusal. Sealed details are given as they are.
func decodeRefusal(name string, data []byte) (refused *RefusedError, sealed []byte, err error) {
	var stored storedRefusal
	if err := json.Unmarshal(data, &stored); err != nil {
		return nil, nil, err
	}
	return &RefusedError{Command: name, RefusalCode: stored.Code, Message: stored.Message, Data: stored.Data}, stored.Sealed, nil
}

// tooLarge reports whether the policy's limit keeps data out of the record.
func (d *dispatch) tooLarge(data []byte) bool {
	return d.policy.ResultLimit >= 0 && len(data) > d.policy.ResultLimit
}

package validation

import (
	"fmt"
	"path"
	"runtime"
	"strings"
)

// MaxFields is how many fields one [Error] lists. A request is small and its errors are large: a list of a hundred
// thousand empty lines must not be answered with a hundred thousand sentences. Bound such lists with max before dive.
const MaxFields = 100

// Error is returned for a command that is not valid. Nothing has been claimed, and the same key may be sent again with
// the corrected command (rule pipe-3). No part of it holds a value of the command.
type Error struct {
	// Command is the command's stable name.
	Command string `json:"command"`
	// Fields says what is wrong, in the order of the command's fields; never empty, at most [MaxFields].
	Fields []FieldError `json:"fields"`
	// Omitted is how many more there were.
	Omitted int `json:"omitted,omitempty"`

	cause *cause
}

// cause keeps the error that the command's own Validate returned behind a pointer, where fmt does not follow it: its text
// may hold anything, a card number too.
type cause struct{ err error }

// Error names the command, the paths and the rules. The messages stay out: those of a command's own Validate may hold a
// value, and this text goes to logs.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "validation: %s is not valid", e.Command)
	for i, f := range e.Fields {
		if i == 0 {
			b.WriteString(": ")
		} else {
			b.WriteString(", ")
		}
		b.WriteString(f.where())
	}
	if e.Omitted > 0 {
		fmt.Fprintf(&b, " and %d more", e.Omitted)
	}
	return b.String()
}

// Code is the outcome code of the error, for logs and edges.
func (*Error) Code() string { return "VALIDATION_FAILED" }

// Unwrap gives the error that the command's own Validate returned, so that [errors.Is] and [errors.As] find what is in it;
// nil where tags refused. Its text is not part of ours and may hold values: do not print it.
func (e *Error) Unwrap() error {
	if e == nil || e.cause == nil { // nil too: errors.Is may come by here through an error that wraps a typed nil
		return nil
	}
	return e.cause.err
}

// FieldError says which field is wrong and why. It is an error, so that a command's Validate can return it; make one
// with [Field].
type FieldError struct {
	// Path names the field as callers know it, in JSON names: "lines[0].qty". Keys of maps, and the indexes of lists
	// below them, are masked: "meta[*].qty". It ends at a field that is an interface, and it is empty for what concerns
	// the command as a whole.
	Path string `json:"path"`
	// Rule is the tag that refused ("gt"), as it was written where it is an alias or an alternative ("rgb|rgba"), or what
	// the command's Validate named. It is "validate" for an error of Validate that is no FieldError.
	Rule string `json:"rule"`
	// Param is the tag's parameter: "0" for gt=0. Where it names fields, it names them in JSON names.
	Param string `json:"param,omitempty"`
	// Message completes the sentence that begins with the field's name: "must be greater than 0".
	Message string `json:"message"`
}

// Field makes the error of one field, for a command's Validate; several are put together with [errors.Join]. path is in
// JSON names and empty for the command as a whole, message completes the sentence "<field> …". Both are shown to the
// caller and path and rule to the log, so neither may hold a value of the command.
func Field(path, rule, message string) error {
	return FieldError{Path: path, Rule: rule, Message: message}
}

// Error names the path and the rule, for the reason that [Error.Error] has.
func (e FieldError) Error() string { return "validation: " + e.where() }

// Code is the outcome code of the error, for logs and edges.
func (FieldError) Code() string { return "VALIDATION_FAILED" }

func (e FieldError) where() string {
	if e.Path == "" {
		return "(" + e.Rule + ")"
	}
	return e.Path + " (" + e.Rule + ")"
}

// undisclosed stands for an error whose text we don't know to be free of values.
func undisclosed() FieldError { return FieldError{Rule: "validate", Message: "is not valid"} }

// PanicError is returned when a rule, Normalize or Validate panicked. The command is neither valid nor invalid, nothing
// has been claimed, and the process goes on. What the panic said is dropped, because it may be a value of the command.
type PanicError struct {
	// Command is the command's stable name.
	Command string
	// Stage is the step that panicked: "normalize", "tags" or "validate".
	Stage string
	// At is the function and line that panicked, such as "checkout.Place.Validate (place.go:42)"; empty if unknown.
	At string
}

func (e *PanicError) Error() string {
	if e.At == "" {
		return fmt.Sprintf("validation: %s: panic in %s", e.Command, e.Stage)
	}
	return fmt.Sprintf("validation: %s: panic in %s at %s", e.Command, e.Stage, e.At)
}

// Code is the outcome code of the error, for logs and edges.
func (*PanicError) Code() string { return "VALIDATION_PANIC" }

// panickedAt finds the function below the panic, from within the deferred function that recovers it.
func panickedAt() string {
	var pcs [64]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for below := false; ; {
		f, more := frames.Next()
		inRuntime := strings.HasPrefix(f.Function, "runtime.")
		switch {
		case inRuntime:
			below = below || f.Function == "runtime.gopanic"
		case below && f.Function != "" && !strings.HasPrefix(f.Function, "reflect."):
			return fmt.Sprintf("%s (%s:%d)", path.Base(f.Function), path.Base(f.File), f.Line)
		}
		if !more {
			return ""
		}
	}
}

// TypeError is reported by [Stage], when the pipeline is built, for a command whose declaration would let invalid commands
// through, refuse valid ones, or panic.
type TypeError struct {
	// Command is the command's stable name, Type its Go type.
	Command, Type string
	// Field is the way to the field in Go names, "Lines[].Qty"; empty for what concerns the type as a whole.
	Field string
	// Tag is the rule that is wrong; empty where there is none.
	Tag string
	// Reason says what is wrong and what to do.
	Reason string
}

func (e *TypeError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "validation: %s (%s): ", e.Command, e.Type)
	if e.Field != "" {
		fmt.Fprintf(&b, "field %s: ", e.Field)
	}
	if e.Tag != "" {
		fmt.Fprintf(&b, "rule %q: ", e.Tag)
	}
	return b.String() + e.Reason
}

// Code is the outcome code of the error, for logs.
func (*TypeError) Code() string { return "VALIDATION_TYPE" }

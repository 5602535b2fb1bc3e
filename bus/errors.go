package bus

import (
	"context"
	"errors"
	"fmt"
	"reflect"
)

// UnhandledError is returned for a command or query that the bus has no handler for.
type UnhandledError struct {
	// Kind is "command" or "query".
	Kind string
	// Type is the Go type that was dispatched. A pointer here often means that the value type is registered.
	Type string
}

func (e *UnhandledError) Error() string {
	return fmt.Sprintf("bus: no handler for the %s %s; register one with registry.Handle or registry.HandleQuery before Build, and send the type that was registered", e.Kind, e.Type)
}

// Code is the outcome code of the error, for logs and edges.
func (*UnhandledError) Code() string { return "UNHANDLED" }

func unhandled[C any](kind string) error {
	return &UnhandledError{Kind: kind, Type: reflect.TypeFor[C]().String()}
}

// DuplicateError is reported by [New] for a name that two entries claim.
type DuplicateError struct {
	// Name is the name claimed twice.
	Name string
	// First and Second are the Go types that claim it. They are equal when one type is served twice.
	First, Second string
}

func (e *DuplicateError) Error() string {
	if e.First == e.Second {
		return fmt.Sprintf("bus: %s: two handlers for %s; a command has one", e.Name, e.First)
	}
	return fmt.Sprintf("bus: %s: the types %s and %s share this name; give each its own (embedding a command promotes its name)", e.Name, e.First, e.Second)
}

// Code is the outcome code of the error, for logs.
func (*DuplicateError) Code() string { return "DUPLICATE_HANDLER" }

// WayError is reported by [New] for an entry that cannot be served.
type WayError struct {
	// Name and Type are the command's, as far as they are known.
	Name, Type string
	// Reason says what is wrong and what to do.
	Reason string
}

func (e *WayError) Error() string {
	switch {
	case e.Name != "":
		return fmt.Sprintf("bus: %s (%s): %s", e.Name, e.Type, e.Reason)
	case e.Type != "":
		return fmt.Sprintf("bus: %s: %s", e.Type, e.Reason)
	}
	return "bus: " + e.Reason
}

// Code is the outcome code of the error, for logs.
func (*WayError) Code() string { return "UNSERVABLE" }

// CodeOf gives the outcome code of any error: "" for nil, the code of the first error in its tree that has a method
// Code() string, "CANCELED" and "DEADLINE_EXCEEDED" for the two context errors, and "INTERNAL" for everything else, an error
// whose methods panic included. All errors of this module have one. Codes are for logs, metric labels and API answers, so
// they must come from a small fixed set and never hold data.
func CodeOf(err error) (code string) {
	if err == nil {
		return ""
	}
	defer func() {
		if code == "" {
			_ = recover() // an error's own method, such as one with a value receiver on a nil pointer
			code = "INTERNAL"
		}
	}()
	if coded, ok := errors.AsType[codedError](err); ok {
		if c := coded.Code(); c != "" {
			return c
		}
	}
	switch {
	case errors.Is(err, context.Canceled):
		return "CANCELED"
	case errors.Is(err, context.DeadlineExceeded):
		return "DEADLINE_EXCEEDED"
	}
	return ""
}

type codedError interface {
	error
	Code() string
}

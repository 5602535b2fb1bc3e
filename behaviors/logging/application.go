package logging

import (
	"context"
	"fmt"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// maxFields is how many fields of the application's a line takes.
const maxFields = 32

// extra is what the application adds to a line.
type extra struct {
	fields  []zap.Field
	problem string // what of it could not be had; "" for nothing
	lazy    bool   // the application's code runs once more when a field is encoded
}

func (x extra) appendTo(own []zap.Field) []zap.Field {
	if len(x.fields) == 0 && x.problem == "" {
		return own
	}
	// The note stands before the fields, which may open a namespace.
	return append(text(own[:len(own):len(own)], "log_error", x.problem), x.fields...)
}

// application runs the application's functions, and none of their panics gets out.
func (o *Observer) application(ctx context.Context, err error) (x extra) {
	if err != nil && o.errorText != nil {
		var s string
		if !guarded(func() { s = o.errorText(err) }) {
			x.problem = "Config.ErrorText panicked"
		}
		x.fields = text(x.fields, "error", s)
	}
	if o.fields == nil {
		return x
	}
	var fields []zap.Field
	if !guarded(func() { fields = o.fields(ctx) }) {
		x.problem = "Config.Fields panicked"
		return x
	}
	if len(fields) > maxFields {
		fields, x.problem = fields[:maxFields], "Config.Fields gave too many fields"
	}
	for _, f := range fields {
		f, lazy, ok := safe(f)
		if !ok {
			x.problem = "a field panicked"
			continue
		}
		x.fields = append(x.fields, f)
		x.lazy = x.lazy || lazy
	}
	return x
}

// safe gives a field that zap can encode, and whether that runs the application's code. zap itself stops the panics of a
// Stringer and an error, but writes what they panicked with; these become texts here. All others are encoded once for trial:
// a panic halfway through an object would leave the line broken, and what zap had written of it is not to be had back.
func safe(f zap.Field) (_ zap.Field, lazy, ok bool) {
	switch f.Type {
	case zapcore.SkipType, zapcore.BoolType, zapcore.StringType, zapcore.DurationType, zapcore.NamespaceType,
		zapcore.Int64Type, zapcore.Int32Type, zapcore.Int16Type, zapcore.Int8Type,
		zapcore.Uint64Type, zapcore.Uint32Type, zapcore.Uint16Type, zapcore.Uint8Type, zapcore.UintptrType,
		zapcore.Float64Type, zapcore.Float32Type:
		return f, false, true
	case zapcore.StringerType:
		var s string
		ok = guarded(func() { s = f.Interface.(fmt.Stringer).String() })
		return zap.String(f.Key, s), false, ok
	case zapcore.ErrorType:
		var s string
		ok = guarded(func() { s = f.Interface.(error).Error() })
		return zap.String(f.Key, s), false, ok
	}
	ok = guarded(func() { f.AddTo(zapcore.NewJSONEncoder(zapcore.EncoderConfig{})) })
	return f, true, ok
}

// guarded reports whether f returned. What it panicked with is dropped, because it may be a value of the command.
func guarded(f func()) (returned bool) {
	defer func() {
		if !returned {
			_ = recover()
		}
	}()
	f()
	return true
}

// Package panics says where a panic came from. Its value may be a command, which must not be logged, so the place is all there is.
package panics

import (
	"path"
	"runtime"
	"strconv"
	"strings"
)

// At finds the function below the panic, from within the deferred function that recovers it. It is "" where there is none.
func At() string {
	var pcs [64]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for below := false; ; {
		f, more := frames.Next()
		switch {
		case strings.HasPrefix(f.Function, "runtime."):
			below = below || f.Function == "runtime.gopanic"
		case below && f.Function != "":
			return path.Base(f.Function) + " (" + path.Base(f.File) + ":" + strconv.Itoa(f.Line) + ")"
		}
		if !more {
			return ""
		}
	}
}

// Package logging writes one line for every dispatch, refusals and panics included, with zap.
//
// It is a [bus.Observer]: it is told what was dispatched and what became of it, and never holds the command, so no setting
// and no mistake can make it log a payload. The rest comes from the request context: key, state, scope, request ids,
// external reference and the attributes a handler has added (rule see-1), so that one line answers a support question.
//
// Logging stands first in the pipeline so that what is refused behind it is seen as well (rule pipe-2).
package logging

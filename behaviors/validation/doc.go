// Package validation is the stage that lets only valid commands through to their claim, so that no idempotency key is
// spent by a request that has to be corrected and sent again (rule pipe-3).
//
// A command is checked in three steps, and the first that refuses ends it:
//
//  1. Normalize() C, where the command has it. What it returns is the command from there on: it is validated, hashed and
//     handled. Trimming blanks and lower-casing an address belong here.
//  2. The `validate` struct tags of github.com/go-playground/validator/v10.
//  3. Validate() error or Validate(context.Context) error, where the command has it, for what tags can't say. It runs
//     only on a command whose tags passed, so it may rely on them: a required pointer is not nil, a date has its form.
//     What is no [FieldError] in its error is told to nobody, because its text may hold anything; errors.Is finds it.
//
// Both methods may have a value or a pointer receiver. Only the command's own are called: those of a value inside it need
// the tag validateFn. One that an embedded struct promotes counts as the command's own, and knows only that struct.
//
// All three must be pure and cheap. They see every attempt, also the retry of a command that has succeeded long ago, and a
// check that asks the database whether an address is taken would refuse that retry because of its own success. Such checks
// belong in the handler, whose refusal is recorded and replayed. A rule on the clock (gt on a time) is allowed, but it may
// refuse a late retry for the same reason.
//
// # What is found before the first request
//
// [Stage] looks at the command's type when the pipeline is built and refuses what validator would only notice, or never
// notice, when customers come: rules that don't exist, that do not fit the field or have a parameter that can't be read,
// names of other fields that lead nowhere, rules on unexported fields, rules that look at the server's files or ask the
// network, and lists of structs with rules but without dive. See [TypeError].
//
// Pointers to structs need no dive: validator follows them where they are not nil. What an interface holds is not known
// before it comes, so rules inside it are not checked at build.
//
// # What an error says
//
// Field errors carry the path in JSON names, the rule and a message, and never the value that was refused: not in a text,
// not in a field, not under %+v. Keys of maps come from outside as much as values do, so a path shows meta[*].
package validation

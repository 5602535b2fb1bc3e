// Package bus carries a command to its one handler.
//
// A command is a plain struct that names itself, and ties that name to the type of its result:
//
//	func (Place) CommandName() bus.Name[Placed] { return "checkout.place" }
//
// [Send] takes the result's type from there, so a caller that expects another result does not compile. A query
// is the same with QueryName and [Ask].
//
// The way to a handler is built once and never at dispatch. It is a ladder of three types, and each rung is made
// from the one before it, in one way only: a handler becomes [Claimed], that becomes [Validated], that becomes
// [Logged], and a [Bus] serves nothing but Logged. So logging → validation → idempotency → handler (rule pipe-1)
// is not a convention that somebody keeps: another order does not compile. Applications do not climb the ladder
// themselves; package registry does it, in one file.
//
// Package bus imports the standard library only. A dispatch is one look-up in a map that never changes after
// [New], by the address of the command's type, and one type assertion: no value is reflected upon, nothing is locked, and
// nothing is allocated by the bus itself.
package bus

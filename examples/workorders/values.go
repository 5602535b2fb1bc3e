package main

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"
)

// Quantity is a decimal number in millionths: 12.5 is Quantity(12_500_000). It never goes through a float, and equal numbers are equal
// however they were written, so 12.5, 12.50 and "12.5" have one fingerprint.
type Quantity int64

// What a Quantity may have before and after its point, in digits. Together they fit into an int64 and into a numeric(18,6).
const (
	wholeDigits    = 12
	fractionDigits = 6
	oneWhole       = 1_000_000
)

var errQuantity = errors.New("workorders: a quantity is a decimal number of at most 12 digits before the point and 6 after it, without an exponent")

// parseQuantity reads a number as JSON writes it, without an exponent: -?(0|[1-9][0-9]*)(.[0-9]+)?
func parseQuantity(s string) (Quantity, error) {
	rest, negative := strings.CutPrefix(s, "-")
	whole, fraction, point := strings.Cut(rest, ".")
	switch {
	case !digits(whole, wholeDigits), len(whole) > 1 && whole[0] == '0', point && !digits(fraction, fractionDigits):
		return 0, errQuantity
	}
	n, err := strconv.ParseInt(whole+fraction+strings.Repeat("0", fractionDigits-len(fraction)), 10, 64)
	if err != nil {
		return 0, errQuantity // does not happen: it has 18 digits at most
	}
	if negative {
		n = -n
	}
	return Quantity(n), nil
}

// digits reports whether s is made of one to limit digits.
func digits(s string, limit int) bool {
	return s != "" && len(s) <= limit && !strings.ContainsFunc(s, func(r rune) bool { return r < '0' || r > '9' })
}

// String is the number in its shortest form: 12.5, never 12.50.
func (q Quantity) String() string {
	sign, n := "", uint64(q)
	if q < 0 {
		sign, n = "-", -n
	}
	s := sign + strconv.FormatUint(n/oneWhole, 10)
	if fraction := n % oneWhole; fraction > 0 {
		s += "." + strings.TrimRight(strconv.FormatUint(oneWhole+fraction, 10)[1:], "0")
	}
	return s
}

// MarshalJSON writes a JSON number.
func (q Quantity) MarshalJSON() ([]byte, error) { return []byte(q.String()), nil }

// MarshalText writes the same text.
func (q Quantity) MarshalText() ([]byte, error) { return []byte(q.String()), nil }

// UnmarshalJSON reads a JSON number, or a JSON string that holds one.
func (q *Quantity) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		return nil // as every type of Go reads it
	}
	if len(data) > 0 && data[0] == '"' {
		var text string
		if json.Unmarshal(data, &text) != nil {
			return errQuantity
		}
		data = []byte(text)
	}
	return q.UnmarshalText(data)
}

// UnmarshalText reads the same numbers.
func (q *Quantity) UnmarshalText(text []byte) (err error) {
	n, err := parseQuantity(string(text))
	if err == nil {
		*q = n
	}
	return err
}

// Date is a day, such as 2026-12-07. The zero Date is none.
type Date struct{ text string }

var errDate = errors.New("workorders: a date is a day of the calendar written as 2026-12-07")

// UnmarshalText reads a day that exists, from 0001-01-01 to 9999-12-31.
func (d *Date) UnmarshalText(text []byte) error {
	day, err := time.Parse(time.DateOnly, string(text))
	if err != nil || day.Year() < 1 {
		return errDate
	}
	d.text = string(text)
	return nil
}

// MarshalText writes the day; nothing for the zero Date.
func (d Date) MarshalText() ([]byte, error) { return []byte(d.text), nil }

func (d Date) String() string { return d.text }

// before compares two days, whose texts are of one length.
func (d Date) before(other Date) bool { return d.text < other.text }

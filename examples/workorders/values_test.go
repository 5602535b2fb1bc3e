package main

import (
	"encoding/json"
	"fmt"
	"math/big"
	"regexp"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestF06_AQuantityHasOneFormHoweverItWasWritten(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`12.5`: "12.5", `12.50`: "12.5", `"12.5"`: "12.5", `"12.500000"`: "12.5", `"\u00312.5"`: "12.5",
		`0`: "0", `-0`: "0", `0.000000`: "0", `"-0.0"`: "0", `10`: "10", `"100.0"`: "100",
		`0.000001`: "0.000001", `-0.000001`: "-0.000001", `-12.50`: "-12.5",
		`999999999999.999999`: "999999999999.999999", `-999999999999.999999`: "-999999999999.999999",
		`9007199254740.993`:   "",                    // 13 digits before the point
		`900719925474.099301`: "900719925474.099301", // a float64 has too few digits for it
		`1234567890123`:       "", `0.1234567`: "", `1.0000000`: "", `1e2`: "", `"1E2"`: "", `"+1"`: "", `"01"`: "", `"00"`: "", `"-"`: "", `""`: "",
		`".5"`: "", `"5."`: "", `"1,5"`: "", `" 1"`: "", `"1 "`: "", `"--1"`: "", `"0x1"`: "", `"1_0"`: "", `"١"`: "", `"NaN"`: "", `"Infinity"`: "",
		`true`: "", `[]`: "", `{}`: "",
	} {
		t.Run(in, func(t *testing.T) {
			t.Parallel()
			var q Quantity
			err := json.Unmarshal([]byte(in), &q)
			if want == "" {
				if err == nil || q != 0 {
					t.Fatalf("got %v, %v; want an error", q, err)
				}
				if digits := strings.Trim(in, `"`); len(digits) > 4 && strings.Contains(err.Error(), digits) {
					t.Errorf("the error holds the value: %v", err)
				}
				return
			}
			if err != nil || q.String() != want {
				t.Fatalf("got %v, %v; want %s", q, err, want)
			}
			if out, err := json.Marshal(q); err != nil || string(out) != want {
				t.Errorf("marshalled as %s, %v", out, err)
			}
			if text, err := q.MarshalText(); err != nil || string(text) != want {
				t.Errorf("as a text %s, %v", text, err)
			}
		})
	}
	q := Quantity(7)
	if err := json.Unmarshal([]byte(`null`), &q); err != nil || q != 7 {
		t.Errorf("null: %v, %v", q, err)
	}
}

// A quantity is the number that was written, in each of its writings.
func TestAQuantityIsItsNumber(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const limit = 1_000_000_000_000_000_000
		q := Quantity(rapid.Int64Range(-limit+1, limit-1).Draw(t, "millionths"))
		text := q.String()
		if want := new(big.Rat).SetFrac64(int64(q), oneWhole); mustRat(t, text).Cmp(want) != 0 {
			t.Fatalf("%s is not %v", text, want)
		}
		if strings.Contains(text, ".") && strings.HasSuffix(text, "0") {
			t.Fatalf("%s is not the shortest form", text)
		}
		padded := text
		if !strings.Contains(text, ".") {
			padded += "."
			padded += "0"
		}
		_, fraction, _ := strings.Cut(padded, ".")
		padded += strings.Repeat("0", rapid.IntRange(0, fractionDigits-len(fraction)).Draw(t, "zeros"))
		for _, writing := range []string{text, padded, `"` + text + `"`, `"` + padded + `"`} {
			var got Quantity
			if err := json.Unmarshal([]byte(writing), &got); err != nil || got != q {
				t.Fatalf("%s is read as %v, %v", writing, got, err)
			}
		}
	})
}

func mustRat(t interface{ Fatalf(string, ...any) }, s string) *big.Rat {
	r, ok := new(big.Rat).SetString(s)
	if !ok {
		t.Fatalf("%s is no number", s)
	}
	return r
}

var quantityGrammar = regexp.MustCompile(`^-?(0|[1-9][0-9]{0,11})(\.[0-9]{1,6})?$`)

func FuzzQuantity(f *testing.F) {
	for _, s := range []string{"12.5", "-0", "0.000001", "999999999999.999999", "1e3", "01", "", ".", "-", "1.", "12.5000000"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		q, err := parseQuantity(s)
		if (err == nil) != quantityGrammar.MatchString(s) {
			t.Fatalf("%q: %v", s, err)
		}
		if err != nil {
			return
		}
		if mustRat(t, s).Cmp(mustRat(t, q.String())) != 0 {
			t.Errorf("%q is read as %v", s, q)
		}
		if again, err := parseQuantity(q.String()); err != nil || again != q {
			t.Errorf("%v is read as %v, %v", q, again, err)
		}
	})
}

func TestADateIsADayOfTheCalendar(t *testing.T) {
	t.Parallel()
	for in, ok := range map[string]bool{
		`"2026-12-07"`: true, `"2024-02-29"`: true, `"2000-02-29"`: true, `"0001-01-01"`: true, `"9999-12-31"`: true,
		`"2026-02-29"`: false, `"1900-02-29"`: false, `"2026-13-01"`: false, `"2026-00-10"`: false, `"2026-04-31"`: false, `"0000-01-01"`: false,
		`"2026-1-2"`: false, `"26-01-02"`: false, `"2026-12-07T00:00:00Z"`: false, `" 2026-12-07"`: false, `"2026-12-07 "`: false, `"2026/12/07"`: false,
		`"12026-12-07"`: false, `"-2026-12-07"`: false, `"+2026-12-07"`: false, `"٢٠٢٦-12-07"`: false, `""`: false, `20261207`: false,
	} {
		t.Run(in, func(t *testing.T) {
			t.Parallel()
			var d Date
			err := json.Unmarshal([]byte(in), &d)
			if (err == nil) != ok || !ok && d != (Date{}) {
				t.Fatalf("got %v, %v", d, err)
			}
			if out, err := json.Marshal(d); ok && (err != nil || string(out) != in) {
				t.Errorf("marshalled as %s, %v", out, err)
			}
		})
	}
}

func FuzzDate(f *testing.F) {
	for _, s := range []string{"2026-12-07", "2026-02-30", "0000-01-01", "2026-12-07T00:00:00Z", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var d Date
		if d.UnmarshalText([]byte(s)) != nil {
			if d != (Date{}) {
				t.Errorf("%q was refused and left %v", s, d)
			}
			return
		}
		var year, month, day int
		if n, err := fmt.Sscanf(s, "%4d-%2d-%2d", &year, &month, &day); n != 3 || err != nil || len(s) != 10 {
			t.Fatalf("%q was accepted", s)
		}
		if at := time.Date(year, time.Month(month), day, 0, 0, 0, 0, time.UTC); year < 1 || at.Format(time.DateOnly) != s || d.String() != s {
			t.Errorf("%q was accepted as %v", s, d)
		}
	})
}

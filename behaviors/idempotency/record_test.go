package idempotency_test

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/tekil-go/tekil/behaviors/idempotency"
)

// The ids are primary keys in databases, so they must never change. The vectors were made by another program.
func TestGoldenVectorsOfScopeIDs(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		scope idempotency.Scope
		want  string
	}{
		{"empty", idempotency.Scope{}, "374708fff7719dd5979ec875d56cd228"},
		{"plain", idempotency.Scope{Tenant: "acme", Client: "erp", Operation: "POST /v1/orders orders.place", Key: "order-000001"}, "a1274f51058d7784cd9e046b7fbdf8df"},
		{"one tenant", idempotency.Scope{Client: "anonymous", Operation: "orders.place", Key: "order-000001"}, "d38c7fa09f695d583752e64a245111fe"},
		{"UUIDv4", idempotency.Scope{Client: "erp", Operation: "orders.place", Key: "8e03978e-40d5-43dd-bc93-6894a57f9324"}, "3f074482137bda9734473f33b5cb343d"},
		{"UUIDv7", idempotency.Scope{Client: "erp", Operation: "orders.place", Key: "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"}, "017f22e279b0246a8dbb2876918dca38"},
		{"UUIDv7 in capitals", idempotency.Scope{Client: "erp", Operation: "orders.place", Key: "017F22E2-79B0-7CC3-98C4-DC0C0C07398F"}, "017f22e279b0cd2543ddabfbd654c5e5"},
		{"ULID", idempotency.Scope{Client: "erp", Operation: "orders.place", Key: "01ARYZ6S41TSV4RRFFQ69G5FAV"}, "01563df364814dd45845dc9951983e8a"},
		{"ULID in small letters", idempotency.Scope{Client: "erp", Operation: "orders.place", Key: "01aryz6s41tsv4rrffq69g5fav"}, "01563df3648151b68bc9eec488a29f6f"},
		{"largest ULID", idempotency.Scope{Client: "erp", Operation: "orders.place", Key: "7ZZZZZZZZZZZZZZZZZZZZZZZZZ"}, "fffffffffffff4c3a249914e0c1940df"},
		{"letters outside ASCII", idempotency.Scope{Tenant: "İstanbul", Client: "müşteri", Operation: "siparis.ver", Key: "order-000001"}, "c974d27a7230331dd723131676a03b24"},
	} {
		id := tc.scope.ID()
		if got := hex.EncodeToString(id[:]); got != tc.want {
			t.Errorf("%s: the id is %s, want %s", tc.name, got, tc.want)
		}
	}
}

// Callers keep these, so they must never change either. The vectors were made by another program.
func TestGoldenVectorsOfOperations_rec4(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{
		"key-00000001":                         "90337cef-830f-7edb-4fc9-77fb1448f250",
		"0190c0de-0000-7000-8000-00000000abcd": "f80c8d24-d3f2-9255-7f3e-85dbdde2535a", // keys of the same millisecond have nothing in common
		"0190c0de-0000-7000-8000-00000000abce": "78ebd24f-edeb-5db2-ecf4-2f417efd3e48",
	} {
		id := idempotency.Scope{Tenant: "t", Client: "c", Operation: "POST /pay test.charge", Key: key}.ID()
		if got := id.Operation(); got != want {
			t.Errorf("%s: the operation is %s, want %s", key, got, want)
		}
		if id.Operation() != want {
			t.Errorf("%s: asking for its operation has changed the id", key)
		}
	}
	if got := (idempotency.ID{}).Operation(); got != "e7f8b657-0f45-0000-0000-000000000000" {
		t.Errorf("the operation of the zero id is %s", got)
	}
}

// timeOf reads the time in front of an id.
func timeOf(id idempotency.ID) int64 {
	return int64(binary.BigEndian.Uint64(append([]byte{0, 0}, id[:6]...)))
}

func TestTimeOfAKeyComesFirst(t *testing.T) {
	t.Parallel()
	for key, ms := range map[string]int64{
		"017f22e2-79b0-7cc3-98c4-dc0c0c07398f": 1645557742000, // RFC 9562, appendix A.6
		"01ARYZ6S41TSV4RRFFQ69G5FAV":           1469918176385, // the ULID specification
		"7ZZZZZZZZZ0000000000000000":           1<<48 - 1,
		"00000000010000000000000000":           1,
	} {
		if got := timeOf(idempotency.Scope{Key: key}.ID()); got != ms {
			t.Errorf("%s: the time is %d, want %d", key, got, ms)
		}
	}
	for _, key := range []string{
		"017f22e2-79b0-6cc3-98c4-dc0c0c07398f", // version 6
		"017f22e2-79b0-7cc3-78c4-dc0c0c07398f", // another variant
		"017f22e2-79b0-7cc3-98c4_dc0c0c07398f",
		"g17f22e2-79b0-7cc3-98c4-dc0c0c07398f",
		"017f22e279b07cc398c4dc0c0c07398f",
		"8ZZZZZZZZZ0000000000000000", // more than 128 bits
		"01ARYZ6S41TSV4RRFFQ69G5FAU", // U is no letter of a ULID
		"01ARYZ6S41TSV4RRFFQ69G5FA",
		"01ARYZ6S41TSV4RRFFQ69G5FAV0",
		"01ARYZ6S41TSV4RRFFQ69G5F.:",
	} {
		s := idempotency.Scope{Client: "c", Operation: "o", Key: key}
		id := s.ID()
		if sum := sumOf(s); [16]byte(sum[:16]) != id {
			t.Errorf("%s is taken for a key that carries a time", key)
		}
	}
}

// sumOf is the hash that an id is made of, written down a second time.
func sumOf(s idempotency.Scope) [32]byte {
	var b []byte
	for _, part := range []string{s.Tenant, s.Client, s.Operation, s.Key} {
		b = append(b, byte(len(part)>>24), byte(len(part)>>16), byte(len(part)>>8), byte(len(part)))
		b = append(b, part...)
	}
	return sha256.Sum256(b)
}

func TestIDsOfKeysThatCarryATimeSortByIt(t *testing.T) {
	t.Parallel()
	var ids []string
	for i := range 100 {
		key := fmt.Sprintf("%08x-%04x-7000-8000-000000000000", (1645557742000+int64(i))>>16, (1645557742000+int64(i))&0xffff)
		id := idempotency.Scope{Key: key}.ID()
		ids = append(ids, string(id[:]))
	}
	if !slices.IsSorted(ids) {
		t.Error("the ids of later keys do not come later")
	}
}

func TestS11_PartsOfAScopeDoNotRunIntoEachOther_BR23(t *testing.T) {
	t.Parallel()
	seen := make(map[idempotency.ID]idempotency.Scope)
	for _, s := range []idempotency.Scope{
		{Tenant: "a", Client: "b", Operation: "c", Key: "d"},
		{Tenant: "ab", Client: "", Operation: "c", Key: "d"},
		{Tenant: "", Client: "ab", Operation: "c", Key: "d"},
		{Tenant: "a", Client: "bc", Operation: "", Key: "d"},
		{Tenant: "a:b", Client: "c", Operation: "", Key: "d"},
		{Tenant: "a", Client: "b:c", Operation: "", Key: "d"},
		{Tenant: "", Client: "", Operation: "", Key: "abcd"},
		{Tenant: "abcd", Client: "", Operation: "", Key: ""},
		{Tenant: "a", Client: "b", Operation: "c", Key: "D"},
		{Tenant: "\x00\x00\x00\x01a", Client: "", Operation: "", Key: ""},
		{Tenant: "", Client: "\x00\x00\x00\x01a", Operation: "", Key: ""},
	} {
		if other, ok := seen[s.ID()]; ok {
			t.Errorf("%+v and %+v have one id", s, other)
		}
		seen[s.ID()] = s
	}
}

func TestEqualScopesAndOnlyTheyHaveEqualIDs(t *testing.T) {
	t.Parallel()
	scope := rapid.Custom(func(t *rapid.T) idempotency.Scope {
		part := rapid.SampledFrom([]string{"", "a", "b", "ab", ":", "a:", "/", "\x00", "ı"})
		join := func(label string) string { return strings.Join(rapid.SliceOfN(part, 0, 3).Draw(t, label), "") }
		return idempotency.Scope{Tenant: join("tenant"), Client: join("client"), Operation: join("operation"), Key: join("key")}
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := scope.Draw(t, "a"), scope.Draw(t, "b")
		if (a == b) != (a.ID() == b.ID()) {
			t.Fatalf("%+v and %+v", a, b)
		}
	})
}

// Twenty thousand back-to-back keys share hundreds of first halves; a lock on those would make strangers wait for each other.
func TestLockKeysOfBackToBackKeysDiffer(t *testing.T) {
	t.Parallel()
	locks, firsts := make(map[int64]bool), make(map[[8]byte]bool)
	const n = 20_000
	for range n {
		key, err := uuid.NewV7()
		if err != nil {
			t.Fatal(err)
		}
		id := idempotency.Scope{Client: "c", Operation: "o", Key: key.String()}.ID()
		locks[id.LockKey()] = true
		firsts[[8]byte(id[:8])] = true
	}
	if len(locks) != n {
		t.Errorf("%d keys have %d lock keys", n, len(locks))
	}
	if len(firsts) == n {
		t.Log("no two first halves are equal this time")
	}
	id := idempotency.ID{8: 0xff, 15: 0x01}
	if got := id.LockKey(); got != -0xffffffffffffff {
		t.Errorf("the lock key of %x is %d", id, got)
	}
}

func ExampleScope_ID() {
	s := idempotency.Scope{Tenant: "acme", Client: "erp", Operation: "POST /v1/orders orders.place", Key: "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"}
	id := s.ID()
	fmt.Println(time.UnixMilli(timeOf(id)).UTC().Format(time.RFC3339)) // the time of the key comes first
	// Output: 2022-02-22T19:22:22Z
}

func TestTheCommandIsWhatStandsBehindTheLastSpaceOfAnOperation(t *testing.T) {
	t.Parallel()
	for operation, want := range map[string]string{
		"POST /v1/orders orders.place": "orders.place", "orders.place": "orders.place", "a b c": "c", "ends with a space ": "", "": "",
	} {
		if got := (idempotency.Scope{Operation: operation}).Command(); got != want {
			t.Errorf("the command of a scope with %q is %q, want %q", operation, got, want)
		}
		if got := (idempotency.Count{Operation: operation}).Command(); got != want {
			t.Errorf("the command of a count of %q is %q, want %q", operation, got, want)
		}
	}
}

func TestASearchAsksForSomethingByOneOfSixAndNotByWhatNarrowsIt(t *testing.T) {
	t.Parallel()
	text := "x"
	for name, q := range map[string]idempotency.Search{
		"nothing": {}, "a tenant": {Tenant: &text}, "a client": {Client: &text}, "an operation": {Operation: &text}, "all three": {Tenant: &text, Client: &text, Operation: &text},
	} {
		if !q.IsZero() {
			t.Errorf("a search for %s asks for something", name)
		}
	}
	for name, q := range map[string]idempotency.Search{
		"an id": {ID: idempotency.ID{15: 1}}, "a key": {Key: text}, "a reference": {ExternalRef: text}, "a draft": {DraftID: text}, "a request id": {RequestID: text},
		"what is stuck": {Stuck: true}, "what is stuck of a tenant": {Stuck: true, Tenant: &text},
	} {
		if q.IsZero() {
			t.Errorf("a search for %s asks for nothing", name)
		}
	}
}

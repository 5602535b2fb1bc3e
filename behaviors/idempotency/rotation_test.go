package idempotency_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/tekil-go/tekil/behaviors/idempotency"
	"github.com/tekil-go/tekil/bus"
	"github.com/tekil-go/tekil/requestctx"
)

// pin is a command with a secret field, under the policy P.
type pin[P hasPolicy] struct {
	Cart string `json:"cart"`
	Pin  string `json:"pin"  idempotency:"secret"`
}

func (pin[P]) CommandName() bus.Name[paid] { return "test.pin" }
func (pin[P]) Idempotency() idempotency.Policy {
	var p P
	return p.policy()
}

// secrets makes secrets by their versions; the key is made of the version.
func secrets(versions ...int) (all []idempotency.Secret) {
	for _, v := range versions {
		all = append(all, idempotency.Secret{Version: v, Key: bytes.Repeat([]byte{byte(v + 1)}, 32)})
	}
	return all
}

func pins[P hasPolicy](t testing.TB, b *bench, versions ...int) bus.Handler[pin[P], paid] {
	t.Helper()
	return serve(t, idempotency.Config{Store: b.stub, Secrets: secrets(versions...)}, func(ctx context.Context, c pin[P]) (paid, error) { return b.charge(ctx, c.Cart) })
}

// rotated has a record left behind by an instance with the secrets of before, in each of the states, and sends the same and another
// payload to an instance with those of after.
func rotated[Before, After hasPolicy](t *testing.T, before, after []int, matches bool) {
	t.Helper()
	for _, state := range []idempotency.RecordState{idempotency.Completed, idempotency.Failed} {
		b := newBench()
		b.then = func(_ context.Context, run int) error {
			if run == 1 && state == idempotency.Failed {
				return errPaper
			}
			return nil
		}
		v := keyed(t, "key-00000001")
		_, _, err := call(t.Context(), pins[Before](t, b, before...), v, pin[Before]{"a", "1234"})
		if (err == nil) != (state == idempotency.Completed) {
			t.Fatal(err)
		}
		now := pins[After](t, b, after...)
		name := fmt.Sprintf("%v to %v, %s", before, after, state)
		if _, out, err := call(t.Context(), now, v, pin[After]{"a", "4321"}); true {
			e := wantError[*idempotency.ConflictError](t, err, out, requestctx.StateConflict)
			if changed := before[0] != after[0]; e.VersionChanged != changed || strings.Contains(e.Error(), "4321") {
				t.Errorf("%s: %v", name, e)
			}
		}
		_, out, err := call(t.Context(), now, v, pin[After]{"a", "1234"})
		switch {
		case !matches:
			if e := wantError[*idempotency.ConflictError](t, err, out, requestctx.StateConflict); !e.VersionChanged || !strings.Contains(e.Error(), "of the secret") {
				t.Errorf("%s: %+v", name, e)
			}
			b.want(t, 1, 1-b2i(state == idempotency.Failed), 1)
			continue
		case state == idempotency.Completed:
			if err != nil || !out.Replayed {
				t.Errorf("%s: %+v, %v", name, out, err)
			}
			b.want(t, 1, 1, 1)
		default:
			if err != nil || out.State != requestctx.StateExecuted {
				t.Errorf("%s: %+v, %v", name, out, err)
			}
			b.want(t, 2, 1, 1)
		}
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func TestF19_RecordIsComparedUnderTheSecretThatItNames(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		before, after []int
		matches       bool
	}{
		{[]int{0}, []int{0}, true},
		{[]int{0}, []int{0, 1}, true},    // the new one is deployed as the second
		{[]int{0, 1}, []int{1, 0}, true}, // and then as the first
		{[]int{1, 0}, []int{0, 1}, true}, // instances side by side
		{[]int{1, 0}, []int{1}, true},
		{[]int{0, 30}, []int{30, 4, 0}, true},
		{[]int{30}, []int{0, 4, 30}, true},
		{[]int{0}, []int{1}, false}, // taken away too early
		{[]int{1}, []int{0}, false}, // given to some and not to others
	} {
		t.Run(fmt.Sprint(tc.before, tc.after), func(t *testing.T) {
			t.Parallel()
			rotated[leased, leased](t, tc.before, tc.after, tc.matches)
			rotated[leased, hurried](t, tc.before, tc.after, tc.matches)
		})
	}
}

func TestF19_F21_SecretAndContractMayChangeAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench()
	v := keyed(t, "key-00000001")
	if _, _, err := call(t.Context(), pins[version2](t, b, 7), v, pin[version2]{"a", "1234"}); err != nil {
		t.Fatal(err)
	}
	if got := b.only(t).HashVersion; got != 8002 {
		t.Errorf("the hash version is %d, want 8002", got)
	}
	if _, out, err := call(t.Context(), pins[leased](t, b, 30, 7), v, pin[leased]{"a", "1234"}); err != nil || !out.Replayed {
		t.Error(out, err)
	}
	b.want(t, 1, 1, 1)
}

func TestF19_AtomicCommandsAndConcurrentInstancesWithOtherSecretsDoTheWorkOnce(t *testing.T) {
	t.Parallel()
	b := newBench()
	old, young := pins[atomically](t, b, 0, 1), pins[atomically](t, b, 1, 0)
	v := keyed(t, "key-00000001")
	results := make(chan error)
	for i := range 16 {
		send := old
		if i%2 == 0 {
			send = young
		}
		go func() {
			_, _, err := call(context.WithoutCancel(t.Context()), send, v, pin[atomically]{"a", "1234"})
			results <- err
		}()
	}
	for range 16 {
		if err := <-results; err != nil && bus.CodeOf(err) != "IDEMPOTENCY_REQUEST_IN_PROGRESS" {
			t.Error(err)
		}
	}
	b.want(t, 1, 1, 1)
}

func TestF19_RecordsOfCommandsWithoutSecretFieldsAreAsTheyWere(t *testing.T) {
	t.Parallel()
	b := newBench()
	v := keyed(t, "key-00000001")
	for _, versions := range [][]int{nil, {5}, {9, 5}} {
		send := serve(t, idempotency.Config{Store: b.stub, Secrets: secrets(versions...)}, func(ctx context.Context, c pay) (paid, error) { return b.handle(ctx, c.Cart) })
		if _, _, err := call(t.Context(), send, v, pay{Cart: "a"}); err != nil {
			t.Error(err)
		}
	}
	b.want(t, 1, 1, 1)
	if got := b.only(t).HashVersion; got != 1000 {
		t.Errorf("the hash version is %d, want 1000", got)
	}
	// And what was recorded before there were versions is of version 0.
	old := keyed(t, "key-00000002")
	if _, _, err := call(t.Context(), pins[leased](t, b, 0), old, pin[leased]{"a", "1234"}); err != nil {
		t.Fatal(err)
	}
	found, err := b.mem.Find(t.Context(), idempotency.Search{Key: old.Key.String()}, 1)
	if err != nil || found[0].HashVersion != 1000 {
		t.Errorf("%+v, %v", found, err)
	}
}

func TestF19_SecretsAreCheckedAndDoNotShow(t *testing.T) {
	t.Parallel()
	key := bytes.Repeat([]byte("k"), 32)
	for name, tc := range map[string]struct {
		secrets []idempotency.Secret
		want    []string
	}{
		"short":        {[]idempotency.Secret{{Key: key}, {Version: 1, Key: key[:31]}}, []string{"Config.Secrets[1]", "shorter than 32 bytes"}},
		"no key":       {[]idempotency.Secret{{}}, []string{"Config.Secrets[0]", "shorter than 32 bytes"}},
		"too high":     {[]idempotency.Secret{{Version: 31, Key: key}}, []string{"version 31"}},
		"negative":     {[]idempotency.Secret{{Version: -1, Key: key}}, []string{"version -1"}},
		"one twice":    {[]idempotency.Secret{{Version: 3, Key: key}, {Key: key}, {Version: 3, Key: key}}, []string{"two keys of the version 3"}},
		"all at once":  {[]idempotency.Secret{{Version: 31}, {Version: 31, Key: key}}, []string{"version 31;", "shorter than", "two keys"}},
		"nothing else": {[]idempotency.Secret{{Version: 30, Key: key}, {Key: key}}, nil},
	} {
		_, err := idempotency.New(idempotency.Config{Secrets: tc.secrets})
		if tc.want == nil {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		wantProblem(t, err, tc.want...)
	}
	all := secrets(2)
	all[0].Key = key
	for _, text := range []string{fmt.Sprint(all), fmt.Sprintf("%+v", idempotency.Config{Secrets: all}), fmt.Sprintf("%#v", all), fmt.Sprintf("%s", all)} {
		if strings.Contains(text, "kkk") || strings.Contains(text, "107") || strings.Contains(text, "0x6b") || !strings.Contains(text, "version 2") {
			t.Errorf("a secret is printed as %s", text)
		}
	}
}

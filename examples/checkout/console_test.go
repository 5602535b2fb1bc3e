package main

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// found is what the console says of a record.
type found struct {
	Records []struct {
		Verdict     string   `json:"verdict"`
		State       string   `json:"state"`
		KeyMasked   string   `json:"key_masked"`
		DraftID     string   `json:"draft_id"`
		ExternalRef string   `json:"external_ref"`
		Attempts    int      `json:"attempts"`
		FoundBy     []string `json:"found_by"`
	} `json:"records"`
}

// operator is the header of whoever was given name and password.
func operator(password string, more ...string) http.Header {
	h := http.Header{"Authorization": {"Basic " + base64.StdEncoding.EncodeToString([]byte("ada:"+password))}, "Content-Type": {"application/json"}}
	for i := 0; i < len(more); i += 2 {
		h.Set(more[i], more[i+1])
	}
	return h
}

func TestALoginAdmitsWhoeverItNamesAndTheZeroOneNobody(t *testing.T) {
	t.Parallel()
	ada := login{"ada", "a-long-password"}
	for _, tc := range []struct {
		of             login
		name, password string
		want           string
	}{
		{ada, "ada", "a-long-password", "ada"},
		{ada, "ada", "a-long-passwort", ""},
		{ada, "eve", "a-long-password", ""},
		{ada, "", "", ""},
		{login{}, "", "", ""},
		{login{}, "ada", "a-long-password", ""},
	} {
		r := httptest.NewRequest(http.MethodGet, "/ops/records/", nil)
		r.SetBasicAuth(tc.name, tc.password)
		if who, err := tc.of.who(r); who != tc.want || (err == nil) != (tc.want != "") {
			t.Errorf("%q with %q is %q, %v", tc.name, tc.password, who, err)
		}
	}
	if who, err := new(login).who(httptest.NewRequest(http.MethodGet, "/ops/records/", nil)); who != "" || err == nil {
		t.Errorf("without a header it is %q, %v", who, err)
	}
}

// "Was he charged twice?": by his draft, by the authorisation on his card's statement, and while the switches make trouble.
func TestSee1_TheConsoleFindsAPaymentByDraftAndByAuthorisation(t *testing.T) {
	t.Parallel()
	const password = "a long: password"
	both(t, func(t *testing.T, d *database) {
		p := start(t, append(d.flags(), "-console", "ada:"+password)...)
		key := d.key("console-key")
		order := post(t, p.base, key, payment("cart-1", 4990)).placed(t)
		if a := post(t, p.base, key, payment("cart-1", 4990)); a.replayed() != "true" {
			t.Fatalf("%v", a)
		}
		for by, q := range map[string]string{"draft_id": "draft-1", "external_ref": order.AuthID, "key": key} {
			a, err := exchange(within(t), http.MethodPost, p.base+"/ops/records/search", `{"q":"`+q+`"}`, operator(password, "X-Demo-Drop", "1"))
			if err != nil || a.status != http.StatusOK {
				t.Fatalf("by %s: %v %v", by, a, err)
			}
			var f found
			if err := json.Unmarshal([]byte(a.body), &f); err != nil || len(f.Records) != 1 {
				t.Fatalf("by %s: %v %v", by, a, err)
			}
			r := f.Records[0]
			if r.FoundBy[0] != by || r.State != "completed" || r.Attempts != 1 || r.DraftID != "draft-1" || r.ExternalRef != order.AuthID || !strings.HasPrefix(r.Verdict, "Done once, by request ") {
				t.Errorf("by %s: %+v", by, r)
			}
			for _, secret := range []string{"4990", "ada@", "cart-1", order.OrderID} {
				if strings.Contains(string(a.body), secret) {
					t.Errorf("by %s it tells %q: %s", by, secret, a.body)
				}
			}
			if by != "key" && strings.Contains(string(a.body), key) {
				t.Errorf("it tells the key: %s", a.body)
			}
		}
		a, err := exchange(within(t), http.MethodGet, p.base+"/ops/records/pipeline", "", operator(password))
		if err != nil || a.status != http.StatusOK || !strings.Contains(string(a.body), `"checkout.place"`) {
			t.Errorf("%v %v", a, err)
		}
	})
}

func TestTheConsoleIsForWhoeverHasThePassword(t *testing.T) {
	t.Parallel()
	d := sqliteDatabase(t)
	p := start(t, append(d.flags(), "-console", "ada:a-long-password")...)
	for name, h := range map[string]http.Header{"nobody": {}, "a wrong password": operator("a-long-passwort"), "no password": operator("")} {
		a, err := exchange(within(t), http.MethodGet, p.base+"/ops/records/", "", h)
		if err != nil || a.status != http.StatusUnauthorized || !strings.HasPrefix(a.header.Get("WWW-Authenticate"), "Basic ") {
			t.Errorf("%s: %v %v", name, a, err)
		}
	}
	if out := p.stdout.String(); !strings.Contains(out, "checkout: ada may look at the records at "+p.base+"/ops/records/\n") || strings.Contains(out, "a-long-password") {
		t.Errorf("it says\n%s", out)
	}
	without := start(t, sqliteDatabase(t).flags()...)
	if a, err := exchange(within(t), http.MethodGet, without.base+"/ops/records/", "", operator("")); err != nil || a.status != http.StatusNotFound {
		t.Errorf("without the flag: %v %v", a, err)
	}
}

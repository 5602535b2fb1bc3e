package pgstore_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore"
	"github.com/tekil-go/tekil/behaviors/idempotency/pgstore/pgtest"
)

func TestX17_WhatALeaseNeedsOfTheSchemaIsDemanded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, spoil, want string }{
		{"no sequence", `DROP SEQUENCE idempotency_fence`, "sequence idempotency_fence does not exist; run pgstore.Migrate"},
		{"a table in its place", `DROP SEQUENCE idempotency_fence; CREATE TABLE idempotency_fence (n int)`, "sequence idempotency_fence does not exist"},
		{"a sequence that is given out in parts", `ALTER SEQUENCE idempotency_fence CACHE 32`, "CACHE 1"},
		{"a sequence that falls", `ALTER SEQUENCE idempotency_fence INCREMENT -1 MINVALUE -10 START 1`, "INCREMENT 1"},
		{"a sequence that begins anew", `ALTER SEQUENCE idempotency_fence MAXVALUE 10 CYCLE`, "NO CYCLE"},
		{"a temporary sequence in front of it", `CREATE TEMPORARY SEQUENCE idempotency_fence`, "unlogged or temporary"},
		{"no time of the lease", `ALTER TABLE idempotency_records DROP COLUMN lease_until`, "no column lease_until"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Open(t)
			migrated(t, db.Pool())
			cfg := db.PoolConfig()
			cfg.MaxConns = 1
			pool := pgtest.NewPool(t, cfg)
			exec(t, pool, c.spoil)
			_, err := pgstore.New(pool).Check(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the check says %v; want it to say %q", err, c.want)
			}
		})
	}
}

func TestX16_ARoleNeedsTheSequenceAndAllRowsAndIsWarnedWhereItMayNotPurge(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	migrated(t, db.Pool())
	pool, role := limited(t, db)
	exec(t, db.Pool(), `GRANT SELECT, INSERT, UPDATE ON idempotency_records TO `+role)
	store := pgstore.New(pool)
	if _, err := store.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "no right of USAGE on the sequence idempotency_fence") {
		t.Errorf("without the sequence the check says %v", err)
	}
	exec(t, db.Pool(), `GRANT USAGE ON SEQUENCE idempotency_fence TO `+role)
	mayNot := func(s string) bool { return strings.Contains(s, "may not DELETE from idempotency_records") }
	if warnings, err := store.Check(t.Context()); err != nil || !slices.ContainsFunc(warnings, mayNot) {
		t.Errorf("without the right to delete the check says %q, %v", warnings, err)
	}
	c := lent("limited-1")
	l := lease(t, store, c) // all that a command needs
	if err := l.Renew(t.Context()); err != nil {
		t.Error(err)
	}
	if err := pgstore.InTx(l.Context(t.Context()), pool, inserting(pool, "x")); err == nil {
		t.Error("the role may write notes, so this shows nothing")
	}
	if err := l.Complete(t.Context(), sold); err != nil {
		t.Error(err)
	}
	exec(t, db.Pool(), `GRANT DELETE ON idempotency_records TO `+role)
	if warnings, err := store.Check(t.Context()); err != nil || slices.ContainsFunc(warnings, mayNot) {
		t.Errorf("with all rights the check says %q, %v", warnings, err)
	}
	exec(t, db.Pool(), `ALTER TABLE idempotency_records ENABLE ROW LEVEL SECURITY`)
	if _, err := store.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "row-level security hides rows") {
		t.Errorf("with hidden rows the check says %v", err)
	}
}

func TestASequenceOfAnotherSchemaThanTheTablesIsRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	migrated(t, db.Pool())
	other := db.Schema() + "_other"
	exec(t, db.Pool(), `CREATE SCHEMA `+other+` CREATE SEQUENCE idempotency_fence`)
	t.Cleanup(func() { exec(t, db.Pool(), `DROP SCHEMA `+other+` CASCADE`) })
	cfg := db.PoolConfig()
	cfg.MaxConns = 1
	pool := pgtest.NewPool(t, cfg)
	exec(t, pool, `SET search_path TO `+other+`, `+db.Schema())
	if _, err := pgstore.New(pool).Check(t.Context()); err == nil || !strings.Contains(err.Error(), "another schema than the table") {
		t.Errorf("the check says %v", err)
	}
	if _, err := pgstore.NewWithConfig(pool, pgstore.Config{Schema: db.Schema()}).Check(t.Context()); err != nil {
		t.Errorf("with the schema said, the check says %v", err)
	}
}

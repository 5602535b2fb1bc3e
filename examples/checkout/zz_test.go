package main
import "testing"
func TestZZ(t *testing.T) { d := postgresDatabase(t); t.Log(d.postgres.URL()); t.Log(d.postgres.Proxy().URL()); t.Log(with(t, d.postgres.Proxy().URL(), "options", "-c a=b")) }

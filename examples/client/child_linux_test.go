package main

import "testing"

func TestTheCheckoutDiesWithAProgramThatIsKilled(t *testing.T) {
	t.Parallel()
	cmd, _, _, address := child(t)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	dead(t, address)
}

// Package pgtest gives tests a real PostgreSQL, and a wire that loses things on command. It is for tests only.
//
// [Open] gives a test a schema of its own, and with it a pool or a URL for a child process:
//
//	func TestPlace(t *testing.T) {
//		pool := pgtest.Pool(t)
//		…
//	}
//
// # Where the server comes from
//
// A test that needs PostgreSQL is never skipped: a skip looks like a success and has tested nothing. The server is
//
//  1. the one that the environment variable TEKIL_TEST_POSTGRES names (a URL or a keyword/value string of a role that
//     may create schemas), else
//  2. a private cluster made with the PostgreSQL binaries found on the machine (14 or newer; first in PATH, then
//     where the common packages put them), else
//  3. the same with binaries that github.com/fergusstrange/embedded-postgres downloads, which needs a network, else
//  4. none, and the test fails with a sentence that says what to install or set.
//
// The private cluster listens on a free port of 127.0.0.1 only, asks for a password made for it alone, and has its
// data in a directory tekil-pgtest-… of [os.TempDir]. PostgreSQL refuses to run as root, so a test that runs as root
// runs it under the account postgres, or nobody where there is no postgres.
//
// All test processes of one user share one cluster, those of several packages that "go test ./..." runs at once
// included. No TestMain is needed for it, and one that calls goleak sees no goroutine of this package after the last
// test. The first test that needs the server starts a keeper, which is the same test binary started once more; the
// keeper starts the server and stops it two seconds after the last test that used it has ended, however that test or
// its process ended. The lock is a file lock, so the kernel keeps the count, and a killed process leaves nothing
// behind.
//
// # How the server is set
//
// The private cluster runs with fsync and full_page_writes off: its data does not survive a crash of the machine and
// need not. Everything a test can see is as in production: synchronous_commit is on, max_connections is 300,
// client_connection_check_interval is 2 s. Its timings flatter, so a benchmark that is to be believed sets
// TEKIL_TEST_POSTGRES_FSYNC=on, which gives it another private cluster with both on, or names a server of its own.
//
// # Losing a COMMIT
//
// A [Proxy] stands between pool and server, reads PostgreSQL's message frames, and can lose, hold or delay exactly one
// statement, or its answer:
//
//	proxy := pgtest.Open(t).Proxy()
//	pool := pgtest.NewPool(t, proxy.PoolConfig())
//	lost := proxy.Arm(pgtest.Fault{Match: pgtest.IsCommit, Action: pgtest.DropAnswer})
//	… // a command through pool, whose COMMIT is executed and whose client never hears of it
//	<-lost.Fired()
//
// It also counts the turnarounds on the wire and says which statements crossed it.
package pgtest

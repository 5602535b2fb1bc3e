//go:build clients

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"
)

// tool finds the program of a client. Without it the test fails: it is never skipped.
func tool(t *testing.T, name, pkg string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("this test needs %s in the PATH; install it (on Debian: apt-get install %s), or leave -tags clients out", name, pkg)
	}
	return path
}

// output runs a client, which reads a body from its standard input.
func output(ctx context.Context, body, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = strings.NewReader(body)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", name, err, stderr.Bytes())
	}
	return out, nil
}

func TestClients_Curl(t *testing.T) {
	t.Parallel()
	curl := tool(t, "curl", "curl")
	httpClient(func(ctx context.Context, address, key, format, body string) (answer, error) {
		out, err := output(ctx, body, curl, "--silent", "--show-error", "--include", "--noproxy", "*", address,
			"-H", "Content-Type: application/"+format, "-H", "Idempotency-Key: "+key, "--data-binary", "@-")
		if err != nil {
			return answer{}, err
		}
		res, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(out)), nil)
		if err != nil {
			return answer{}, err
		}
		defer res.Body.Close()
		got, err := io.ReadAll(res.Body)
		return answer{res.StatusCode, res.Header, got}, err
	}).served(t)
}

// fetch is what a program on Node 18 or newer does.
const fetch = `
const [address, key, format] = process.argv.slice(1);
const chunks = [];
for await (const chunk of process.stdin) chunks.push(chunk);
const response = await fetch(address, {
  method: "POST",
  headers: { "Content-Type": "application/" + format, "Idempotency-Key": key },
  body: Buffer.concat(chunks).toString("utf8"),
});
console.log(JSON.stringify({ status: response.status, header: [...response.headers], body: await response.text() }));
`

func TestClients_NodeFetch(t *testing.T) {
	t.Parallel()
	node := tool(t, "node", "nodejs")
	httpClient(func(ctx context.Context, address, key, format, body string) (answer, error) {
		out, err := output(ctx, body, node, "--no-warnings", "--input-type=module", "--eval", fetch, "--", address, key, format)
		if err != nil {
			return answer{}, err
		}
		var said struct {
			Status int
			Header [][2]string
			Body   string
		}
		if err := json.Unmarshal(out, &said); err != nil {
			return answer{}, fmt.Errorf("%w: %s", err, out)
		}
		a := answer{said.Status, http.Header{}, []byte(said.Body)}
		for _, h := range said.Header {
			a.header.Add(h[0], h[1])
		}
		return a, nil
	}).served(t)
}

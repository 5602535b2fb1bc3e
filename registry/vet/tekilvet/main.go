// Command tekilvet looks for code around a tekil bus that compiles and loses money. It is run by the go command, or runs it:
//
//	go install github.com/tekil-go/tekil/registry/vet/tekilvet
//	go vet -vettool=$(go env GOPATH)/bin/tekilvet ./...
//	tekilvet ./...
//
// The second form starts the first, so both need the go command, read test files as well, and take its flags. The rules are those of
// package vet; "tekilvet help freshkey" explains one. "-freshkey=false" switches one off, and "-freshkey" all the others. The exit code
// is 0 where nothing was found.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/tools/go/analysis/unitchecker"

	"github.com/tekil-go/tekil/registry/vet"
)

func main() {
	if args := os.Args[1:]; !fromGo(args) {
		os.Exit(run(args))
	}
	unitchecker.Main(vet.Analyzers...)
}

// fromGo reports whether the arguments are those with which the go command calls its vet tool, or ask for help.
func fromGo(args []string) bool {
	if len(args) == 0 {
		return true
	}
	last := args[len(args)-1]
	return args[0] == "help" || args[0] == "-flags" || strings.HasPrefix(args[0], "-V") || strings.HasSuffix(last, ".cfg")
}

// run has the go command call this program for each package, and gives its exit code.
func run(args []string) int {
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, "tekilvet:", err)
		return 2
	}
	cmd := exec.Command("go", append([]string{"vet", "-vettool=" + self}, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return exit.ExitCode()
	case err != nil:
		fmt.Fprintln(os.Stderr, "tekilvet:", err)
		return 2
	}
	return 0
}

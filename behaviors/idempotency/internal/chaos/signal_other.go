//go:build !unix

package chaos

import (
	"errors"
	"os"
	"os/exec"
)

func apart(*exec.Cmd) {}

func stop(*os.Process) error   { return errors.ErrUnsupported }
func resume(*os.Process) error { return errors.ErrUnsupported }

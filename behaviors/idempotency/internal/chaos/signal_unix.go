//go:build unix

package chaos

import (
	"os"
	"os/exec"
	"syscall"
)

// apart gives a process a group of its own: should it be stopped when its parent dies, the kernel wakes it with a hang-up.
func apart(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// stop makes a process stand still until resume.
func stop(p *os.Process) error   { return p.Signal(syscall.SIGSTOP) }
func resume(p *os.Process) error { return p.Signal(syscall.SIGCONT) }

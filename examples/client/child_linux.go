package main

import "syscall"

// childAttributes let the kernel kill the checkout when this program dies, however it does.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

//go:build !linux

package main

import "syscall"

// childAttributes are none. A checkout is left over where this program is killed by a signal that cannot be caught.
func childAttributes() *syscall.SysProcAttr { return nil }

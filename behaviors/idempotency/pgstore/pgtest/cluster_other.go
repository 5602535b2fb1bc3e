//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package pgtest

import "errors"

var errPlatform = errors.New("on this system there is no private cluster")

func (c cluster) join() (string, func(), error) { return "", nil, errPlatform }

func freePort() (int, error) { return 0, errPlatform }

func ownDirectory(string) error { return errPlatform }

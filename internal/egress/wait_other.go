//go:build !linux

package egress

import "syscall"

// waitReadable lets the read itself wait, which costs a buffer per silent
// tunnel.
func waitReadable(syscall.RawConn) error { return nil }

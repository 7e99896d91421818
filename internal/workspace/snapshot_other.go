//go:build !linux

package workspace

import (
	"context"
	"errors"
)

// Snapshot needs Linux: its descriptors and its change times.
func Snapshot(context.Context, string, *Tree, Options) (*Tree, error) {
	return nil, errors.New("read workspace: only Linux is supported")
}

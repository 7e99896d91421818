//go:build !linux

package clone

import (
	"context"
	"errors"
)

// Tree needs Linux: its way of opening beneath a folder.
func Tree(context.Context, string, string, Options) (Result, error) {
	return Result{}, errors.New("copy a folder: only Linux is supported")
}

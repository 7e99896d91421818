//go:build !linux

package delta

import (
	"context"
	"errors"
	"os"
)

var errNotHere = errors.New("only Linux is supported")

const (
	created = "created"
	deleted = "deleted"
)

func (d *Delta) read(context.Context, Layer, bool, Options) error { return errNotHere }

func (d *Delta) find(string, []Layer, string, bool) (Found, error) { return Found{}, errNotHere }

func (d *Delta) open(string, []Layer, string, bool) (*os.File, error) { return nil, errNotHere }

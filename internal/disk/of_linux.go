package disk

import (
	"context"

	"golang.org/x/sys/unix"
)

// Of measures a folder on disk as a step's own is measured: blocks in use and
// entries, hard links once, no link followed.
func Of(ctx context.Context, dir string) (Usage, error) {
	w := walk{done: func() bool { return ctx.Err() != nil }}
	u, err := w.run(unix.AT_FDCWD, dir)
	if err == nil {
		err = ctx.Err()
	}
	return u, err
}

package image

import (
	"errors"
	"fmt"
)

// Why an image cannot be had. Whatever is none of these is the host's doing: it has
// no room, or lets nothing be written.
var (
	// ErrMissing: the store does not have it.
	ErrMissing = errors.New("it is not in the store of images")
	// ErrRefused: it is malformed, hostile, too large or for another machine.
	ErrRefused = errors.New("refused")
	// ErrNotFound: the registry, or the disk, does not have it, or does not show it to us.
	ErrNotFound = errors.New("not found")
	// ErrNetwork: the registry was not reached, or broke off. Another try may do.
	ErrNetwork = errors.New("the registry could not be asked")
)

// refused says what about an image is not taken.
func refused(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrRefused, fmt.Errorf(format, args...))
}

// OfHost says whether an error is the host's doing: the image may be fine.
func OfHost(err error) bool {
	for _, other := range []error{ErrMissing, ErrRefused, ErrNotFound, ErrNetwork} {
		if errors.Is(err, other) {
			return false
		}
	}
	return err != nil
}

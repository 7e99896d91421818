// Package image brings the root file systems of OCI images onto this machine: from
// a registry, or from an archive that docker save or an OCI tool wrote.
//
// What comes in was made by somebody else. Every part is held to its digest, every
// layer is read to its end and judged before the first byte of it is written, and a
// root is put in its place whole or not at all. Nothing of an image is run, and of its
// configuration only the variables are meant for a box; the rest is told.
//
// The store belongs to one user. A look into it never asks anybody:
//
//	ref, err := image.Parse("python:3.12-slim")
//	s := &image.Store{Dir: dir}
//	img, err := s.Lookup(ref)
//	if errors.Is(err, image.ErrMissing) {
//		img, err = (&image.Puller{Store: s}).Pull(ctx, ref)
//	}
//	defer img.Close()
package image

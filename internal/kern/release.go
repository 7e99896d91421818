package kern

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
)

// maxEntries bounds how much of an archive is looked through.
const maxEntries = 64

// fromRelease fetches kern's own release: a packed tar with the program in it.
func fromRelease(ctx context.Context, o InstallOptions, p pin) ([]byte, error) {
	machine, ok := releaseMachine[p.Arch]
	if !ok {
		return nil, fmt.Errorf("there is no release for %s", p.Arch)
	}
	url := fmt.Sprintf(o.Release, p.Version, machine)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	res, err := o.Client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, res.Status)
	}
	return openArchive(io.LimitReader(res.Body, maxBinary))
}

// openArchive takes kern out of a packed tar.
func openArchive(r io.Reader) ([]byte, error) {
	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("open the archive: %w", err)
	}
	t := tar.NewReader(io.LimitReader(z, 2*maxBinary))
	for range maxEntries {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read the archive: %w", err)
		}
		if h.Typeflag != tar.TypeReg || path.Base(h.Name) != "kern" {
			continue
		}
		var b bytes.Buffer
		if err := copyAtMost(&b, t, maxBinary); err != nil {
			return nil, fmt.Errorf("read kern from the archive: %w", err)
		}
		return b.Bytes(), nil
	}
	return nil, errors.New("the archive holds no kern")
}

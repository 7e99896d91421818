package sandbox

import (
	"encoding/base64"
	"fmt"
	"io"
	"os"

	"github.com/untrusted-steps/untrusted-steps/internal/cell"
	"github.com/untrusted-steps/untrusted-steps/internal/steps"
)

// Value is something that code has shown, in each form that it has: MIME type to
// bytes. All of it is the code's own: HTML and SVG in it would run in a browser.
type Value map[string][]byte

// The forms that are asked for most; nil or empty where there is none.

// Text is the plain text form.
func (v Value) Text() string { return string(v["text/plain"]) }

// HTML is the form of HTML.
func (v Value) HTML() string { return string(v["text/html"]) }

// Markdown is the form of Markdown.
func (v Value) Markdown() string { return string(v["text/markdown"]) }

// JSON is the form of JSON.
func (v Value) JSON() []byte { return v["application/json"] }

// SVG is the picture as SVG.
func (v Value) SVG() []byte { return v["image/svg+xml"] }

// PNG is the picture as PNG.
func (v Value) PNG() []byte { return v["image/png"] }

// JPEG is the picture as JPEG.
func (v Value) JPEG() []byte { return v["image/jpeg"] }

// maxValue bounds a form that is read back; the runner of cells bounds it before.
const maxValue = 64 << 20

// values are the results of a step, those with files of their own too.
func (s *Sandbox) values(sr *steps.StepResult) (list []Value, err error) {
	if len(sr.Results) == 0 {
		return nil, nil
	}
	root, err := os.OpenRoot(s.out)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	for i, forms := range sr.Results {
		v := Value{}
		for mime, text := range forms {
			f := sr.ResultFile(i, mime)
			switch {
			case f != nil:
				if v[mime], err = readWhole(root, f.Path); err != nil {
					return nil, err
				}
			case cell.Textual(mime):
				v[mime] = []byte(text)
			default:
				if v[mime], err = base64.StdEncoding.DecodeString(text); err != nil {
					return nil, fmt.Errorf("a value of %q: %w", mime, err)
				}
			}
		}
		list = append(list, v)
	}
	return list, nil
}

func readWhole(root *os.Root, path string) ([]byte, error) {
	f, err := root.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxValue))
}

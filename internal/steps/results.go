package steps

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/cell"
	"github.com/untrusted-steps/untrusted-steps/internal/report/rich"
)

const (
	// maxInline is how long a value is that stands in report.json itself, and
	// maxInlined how long all of a step's are together. What is longer has a file.
	maxInline  = 64 << 10
	maxInlined = 4 << 20
	// maxRunInlined is how long those of a run are together, as report.json has them,
	// and maxRunResults how long with what is told of each, its file too. A file has
	// room for a thousand cells.
	maxRunInlined = 32 << 20
	maxRunResults = 64 << 20
	resultTold    = 256 // bytes around a value and about its file, about
)

// jsonBytes is how long a text is in JSON, at most.
func jsonBytes(text string) int {
	n := len(text)
	for i := range len(text) {
		switch c := text[i]; {
		case c < ' ' || c == '<' || c == '>' || c == '&' || c == 0x7f:
			n += 5
		case c == '"' || c == '\\':
			n++
		case c == 0xe2: // two of the characters that begin so are written as six
			n += 3
		}
	}
	return n
}

// results writes down what a cell showed. What is secret in it is masked; bytes
// that hold a secret are left out, since what masks text would break them.
func (r *Runner) results(sr *StepResult, got cell.Results) (err error) {
	sr.Notes = append(sr.Notes, got.Notes...)
	var folder *resultFolder
	inlined, left := 0, 0
	defer func() {
		if left > 0 {
			sr.Notes = append(sr.Notes, fmt.Sprintf("%d forms of results are not kept: those of a run have %d MiB in its report", left, maxRunResults>>20))
		}
		if folder != nil {
			err = errors.Join(err, folder.root.Close())
		}
	}()
	for _, list := range got.List {
		out := CellResult{}
		for _, v := range list {
			if r.Masker.Mask(v.MIME) != v.MIME {
				sr.Notes = append(sr.Notes, "a result whose type holds the value of a variable of passEnv is not kept")
				continue
			}
			text, data, why := r.shown(v)
			if why != "" {
				sr.Notes = append(sr.Notes, why)
				continue
			}
			size := jsonBytes(text)
			long := len(text) > maxInline || inlined+size > maxInlined || r.inlined.Load()+int64(size) > maxRunInlined
			told := int64(resultTold + 2*len(v.MIME))
			if long {
				size = 0
			}
			if r.told.Add(told+int64(size)) > maxRunResults {
				left++
				continue
			}
			r.inlined.Add(int64(size))
			if long || cell.Image(v.MIME) || v.MIME == "image/svg+xml" {
				if folder == nil {
					if folder, err = openResults(r.Out, sr.ID); err != nil {
						return err
					}
				}
				at, err := folder.write(len(sr.Results), v.MIME, data)
				if err != nil {
					return err
				}
				sr.ResultFiles = append(sr.ResultFiles, ResultFile{Result: len(sr.Results), MIME: v.MIME, Path: at, Bytes: int64(len(data))})
				if long {
					text = at
				}
			}
			inlined += size
			out[v.MIME] = text
		}
		if len(out) > 0 {
			sr.Results = append(sr.Results, out)
		}
	}
	return nil
}

// shown is a value as the report has it, and as a file has it.
func (r *Runner) shown(v cell.Value) (text string, data []byte, why string) {
	if cell.Textual(v.MIME) {
		text = r.Masker.Lasting(string(v.Data))
		for _, read := range readings(v.MIME, text) {
			if r.Masker.Lasting(read) != read {
				return "", nil, "a result of the type " + v.MIME + " spells the value of a variable of passEnv in a way of its own; it is not kept"
			}
		}
		return text, []byte(text), ""
	}
	text = base64.StdEncoding.EncodeToString(v.Data)
	if r.Masker.Mask(string(v.Data)) != string(v.Data) || r.Masker.Mask(text) != text {
		return "", nil, "a result of the type " + v.MIME + " holds the value of a variable of passEnv; it is not kept"
	}
	return text, v.Data, ""
}

// readings are what summary and page show of a text that has another spelling for it,
// or somebody reads of it there. A table is made of the first, and a browser draws the
// second; of JSON the source is shown, and whoever reads it reads what its strings say.
// What stands within tags is shown as source alone, which is masked as such.
func readings(mime, text string) []string {
	switch {
	case mime == "text/html" || mime == "text/markdown" || strings.HasSuffix(mime, "+xml"):
		joined, spaced := rich.Reading(text)
		return []string{joined, spaced}
	case mime == "application/json" || strings.HasSuffix(mime, "+json"):
		var b strings.Builder
		d := json.NewDecoder(strings.NewReader(text))
		d.UseNumber()
		for { // as far as it is JSON
			t, err := d.Token()
			if err != nil {
				return []string{b.String()}
			}
			if s, ok := t.(string); ok {
				b.WriteString(s + "\n")
			}
		}
	}
	return nil
}

// resultsFolder is where the files of a step's results are, within its own.
const resultsFolder = "results"

// resultFolder is where the files of a step's results are.
type resultFolder struct {
	root *os.Root
	id   string // of the step
	made map[string]bool
}

func openResults(out, id string) (*resultFolder, error) {
	// Inside the report folder and nowhere else, whatever links stand in it.
	root, err := os.OpenRoot(out)
	if err != nil {
		return nil, fmt.Errorf("open the report folder: %w", err)
	}
	f := &resultFolder{root: root, id: id, made: map[string]bool{}}
	if err := root.MkdirAll(path.Join("steps", id, resultsFolder), 0o755); err != nil {
		return nil, errors.Join(fmt.Errorf("make the folder of the step's results: %w", err), root.Close())
	}
	return f, nil
}

// endings are how files of a type are called. Nobody should open a page or a
// drawing that a step made by a double click: a browser would run what is in it.
var endings = map[string]string{
	"image/png": "png", "image/jpeg": "jpg", "image/svg+xml": "svg.txt", "text/html": "html.txt",
	"text/markdown": "md", "text/latex": "tex", "application/json": "json",
}

// resultPath is where the n-th result's form of a type is. An other one than the first
// that would be called so has a number of its own beside that.
func resultPath(id string, n, other int, mime string) string {
	ending := endings[mime]
	switch {
	case ending != "":
	case cell.Textual(mime):
		ending = strings.ReplaceAll(mime, "/", ".") + ".txt"
	default:
		ending = strings.ReplaceAll(mime, "/", ".") + ".bin"
	}
	name := fmt.Sprintf("%d.%s", n, ending)
	if other > 0 {
		name = fmt.Sprintf("%d.%d.%s", n, other, ending)
	}
	return path.Join("steps", id, resultsFolder, name)
}

// IsResultPath says whether a path is one at which a run writes the n-th result's form
// of a type.
func IsResultPath(at, id string, n int, mime string) bool {
	if !cell.IsMIME(mime) {
		return false
	}
	if at == resultPath(id, n, 0, mime) {
		return true
	}
	rest, _ := strings.CutPrefix(path.Base(at), fmt.Sprintf("%d.", n))
	digits, _, _ := strings.Cut(rest, ".")
	other, err := strconv.Atoi(digits)
	return err == nil && other > 0 && at == resultPath(id, n, other, mime)
}

func (f *resultFolder) write(n int, mime string, data []byte) (at string, err error) {
	at = resultPath(f.id, n, 0, mime)
	if f.made[at] { // a.b/c and a/b.c, by which a cell could choose that there is no verdict
		at = resultPath(f.id, n, len(f.made), mime)
	}
	f.made[at] = true
	file, err := f.root.OpenFile(at, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return "", fmt.Errorf("make the file of a result: %w", err)
	}
	_, err = file.Write(data)
	if err = errors.Join(err, file.Close()); err != nil {
		return "", fmt.Errorf("write a result: %w", err)
	}
	return at, nil
}

package patch

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1"
	"fmt"
	"unicode/utf8"
)

// noBlob is the name of a file that is not there.
const noBlob = "0000000000000000000000000000000000000000"

// blob is git's name for a content: it says which file a patch is for, and
// protects nothing.
func blob(content []byte) string {
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00", len(content))
	h.Write(content)
	return fmt.Sprintf("%x", h.Sum(nil))
}

// isText says whether a content may be shown in lines. git looks for a NUL in
// the first 8000 bytes; the hunks of a patch are read by more than git, so that
// a NUL further on, or what is not UTF-8, does not go into them either.
func isText(content []byte) bool {
	return bytes.IndexByte(content, 0) < 0 && utf8.Valid(content)
}

const (
	// literalLine is how many bytes one line of a literal holds.
	literalLine = 52
	base85      = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
)

// literal writes a content as git's binary patch does: compressed, and in lines
// that begin with their length.
func literal(b *bytes.Buffer, content []byte) error {
	var packed bytes.Buffer
	z, err := zlib.NewWriterLevel(&packed, zlib.BestSpeed)
	if err != nil {
		return err
	}
	if _, err := z.Write(content); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	fmt.Fprintf(b, "GIT binary patch\nliteral %d\n", len(content))
	b.Grow(packed.Len()/literalLine*(literalLine/4*5+2) + 80)
	for packed.Len() > 0 {
		line := packed.Next(literalLine)
		if n := byte(len(line)); n <= 26 {
			b.WriteByte('A' + n - 1)
		} else {
			b.WriteByte('a' + n - 27)
		}
		for len(line) > 0 {
			var four [4]byte
			line = line[copy(four[:], line):]
			v := uint32(four[0])<<24 | uint32(four[1])<<16 | uint32(four[2])<<8 | uint32(four[3])
			var five [5]byte
			for i := 4; i >= 0; i-- {
				five[i], v = base85[v%85], v/85
			}
			b.Write(five[:])
		}
		b.WriteByte('\n')
	}
	b.WriteByte('\n')
	return nil
}

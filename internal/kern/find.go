package kern

import (
	"errors"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/pinned"
)

// maxBinary is far above kern's 4 MB.
const maxBinary = 64 << 20

// kind is kern as it is looked for on a machine of an architecture. /bin/true, told
// to run a box, answers success without running anything: a program must claim to
// be kern.
func kind(arch string) pinned.Kind {
	p, _ := pinFor(arch)
	return pinned.Kind{
		Name: "kern", Env: "KERN_BIN", Flag: "--kern-sha256", Get: "untrusted-steps kern install",
		Release: Version, Sum: p.SHA256, MaxBytes: maxBinary,
		Version: func(line string) (string, error) {
			v, ok := strings.CutPrefix(line, "kern ")
			if !ok {
				return "", errors.New("it is not kern")
			}
			return strings.TrimSpace(v), nil
		},
	}
}

// cachePath is where Install puts a build of kern. Empty if the environment
// names no place.
func cachePath(getenv func(string) string, sum string) string {
	return pinned.CachePath(getenv, "kern", sum)
}

package steps

import (
	"bufio"
	"os"
	"strconv"
	"strings"
)

// mountedInside gives the places below a folder where something is mounted, as
// paths relative to it.
func mountedInside(dir string) (inside []string, err error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		if at, below := strings.CutPrefix(mountPoint(sc.Text()), strings.TrimSuffix(dir, "/")+"/"); below {
			inside = append(inside, at)
		}
	}
	return inside, sc.Err()
}

// mountPoint is the mount point of a line of mountinfo, with what the kernel
// writes as three octal digits.
func mountPoint(line string) string {
	fields := strings.Fields(line)
	if len(fields) < 5 {
		return ""
	}
	var b strings.Builder
	for s := fields[4]; s != ""; {
		if s[0] == '\\' && len(s) >= 4 {
			if n, err := strconv.ParseUint(s[1:4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				s = s[4:]
				continue
			}
		}
		b.WriteByte(s[0])
		s = s[1:]
	}
	return b.String()
}

package steps

import (
	"bufio"
	"os"
	"strconv"
	"strings"
)

// mountedInside gives a place below a folder where something is mounted, "" if
// there is none.
func mountedInside(dir string) (string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		if at := mountPoint(sc.Text()); strings.HasPrefix(at, strings.TrimSuffix(dir, "/")+"/") {
			return at, nil
		}
	}
	return "", sc.Err()
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

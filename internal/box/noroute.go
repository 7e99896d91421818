package box

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// noRoute counts what the processes of a box tried to send to addresses that its
// network has no way to: what goes past the proxy. The kernel counts it for each
// network namespace, and says neither who nor where to. The tables are opened while
// the box's first process lives and can be read when it is gone.
type noRoute struct {
	files  []*os.File
	before uint64
}

// noRouteTables are the kernel's, with the name of the count in each.
var noRouteTables = []struct {
	name string
	read func(text string) (uint64, error)
}{
	{"snmp", fromSNMP},
	{"snmp6", fromSNMP6},
}

// openNoRoute looks at the network of a process; nil where it cannot be read, as
// under a /proc that hides other people's processes.
func openNoRoute(pid int) *noRoute {
	c := &noRoute{}
	for _, t := range noRouteTables {
		f, err := os.Open(fmt.Sprintf("/proc/%d/net/%s", pid, t.name))
		if errors.Is(err, os.ErrNotExist) && len(c.files) > 0 {
			break // a kernel without IPv6
		}
		if err != nil {
			c.close()
			return nil
		}
		c.files = append(c.files, f)
	}
	var ok bool
	if c.before, ok = c.now(); !ok {
		c.close()
		return nil
	}
	return c
}

// count is how many there were since the tables were opened.
func (c *noRoute) count() uint64 {
	if c == nil {
		return 0
	}
	n, ok := c.now()
	if !ok || n < c.before {
		return 0
	}
	return n - c.before
}

func (c *noRoute) now() (sum uint64, ok bool) {
	// The kernel's tables are 4 KiB; the size is of nobody's choosing.
	const most = 64 << 10
	for i, f := range c.files {
		text, err := io.ReadAll(io.NewSectionReader(f, 0, most))
		if err != nil {
			return 0, false
		}
		n, err := noRouteTables[i].read(string(text))
		if err != nil {
			return 0, false
		}
		sum += n
	}
	return sum, true
}

func (c *noRoute) close() {
	if c == nil {
		return
	}
	for _, f := range c.files {
		f.Close()
	}
}

// fromSNMP reads the count of IPv4: a line of names, and one of values.
func fromSNMP(text string) (uint64, error) {
	var names []string
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] != "Ip:" {
			continue
		}
		if names == nil {
			names = f
			continue
		}
		for i, name := range names {
			if name == "OutNoRoutes" && i < len(f) {
				return strconv.ParseUint(f[i], 10, 64)
			}
		}
	}
	return 0, errors.New("no count of packets without a route")
}

// fromSNMP6 reads that of IPv6: a name and a value on each line.
func fromSNMP6(text string) (uint64, error) {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "Ip6OutNoRoutes" {
			return strconv.ParseUint(f[1], 10, 64)
		}
	}
	return 0, errors.New("no count of packets without a route")
}

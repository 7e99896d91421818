package steps

import (
	"slices"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/lazy"
)

var capShape = lazy.Regexp(capPattern)

func readCapDrop(c *checker, k key, v value, s *step) {
	s.CapDrop = c.list(k, v, func(item value) (string, bool) {
		const allowed = "ALL, or the name of a capability such as NET_RAW"
		name, ok := c.text("an item of capDrop", allowed, item)
		if !ok {
			return "", false
		}
		short := strings.TrimPrefix(name, "CAP_")
		if len(name) > 32 || !capShape().MatchString(name) || !slices.Contains(capabilities, short) {
			c.wrong(item, "not a capability", allowed, c.meant(strings.TrimPrefix(strings.ToUpper(name), "CAP_"), capabilities)...)
			return "", false
		}
		return short, true
	})
}

// capabilities are the ones Linux has, and the word for all of them.
var capabilities = []string{
	"ALL", "AUDIT_CONTROL", "AUDIT_READ", "AUDIT_WRITE", "BLOCK_SUSPEND", "BPF", "CHECKPOINT_RESTORE", "CHOWN",
	"DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "IPC_LOCK", "IPC_OWNER", "KILL", "LEASE",
	"LINUX_IMMUTABLE", "MAC_ADMIN", "MAC_OVERRIDE", "MKNOD", "NET_ADMIN", "NET_BIND_SERVICE", "NET_BROADCAST",
	"NET_RAW", "PERFMON", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYSLOG", "SYS_ADMIN", "SYS_BOOT",
	"SYS_CHROOT", "SYS_MODULE", "SYS_NICE", "SYS_PACCT", "SYS_PTRACE", "SYS_RAWIO", "SYS_RESOURCE", "SYS_TIME",
	"SYS_TTY_CONFIG", "WAKE_ALARM",
}

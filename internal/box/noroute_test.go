package box

import "testing"

func TestPacketsWithoutARouteAreReadFromTheKernelsTables(t *testing.T) {
	const four = "Ip: Forwarding OutRequests OutDiscards OutNoRoutes ReasmTimeout\nIp: 2 64 0 7 0\nIcmp: InMsgs OutNoRoutes\nIcmp: 5 9\n"
	const six = "Ip6InReceives                   \t3\nIp6OutNoRoutes                  \t12\nIcmp6OutNoRoutes 4\n"
	for _, c := range []struct {
		sentence, text string
		read           func(string) (uint64, error)
		want           uint64
		ok             bool
	}{
		{"IPv4", four, fromSNMP, 7, true},
		{"IPv6", six, fromSNMP6, 12, true},
		{"a table without the count", "Ip: Forwarding\nIp: 2\n", fromSNMP, 0, false},
		{"names without values", "Ip: Forwarding OutNoRoutes\nIp: 2\n", fromSNMP, 0, false},
		{"a value that is none", "Ip: OutNoRoutes\nIp: x\n", fromSNMP, 0, false},
		{"nothing", "", fromSNMP, 0, false},
		{"no IPv6 count", "Ip6InReceives 3\n", fromSNMP6, 0, false},
		{"a value that is none", "Ip6OutNoRoutes -1\n", fromSNMP6, 0, false},
	} {
		if got, err := c.read(c.text); got != c.want || (err == nil) != c.ok {
			t.Errorf("%s: %d, %v", c.sentence, got, err)
		}
	}
	// What cannot be looked at counts nothing.
	if c := openNoRoute(1 << 30); c != nil || c.count() != 0 {
		t.Error("a process that is not there has a count")
	}
}

package egress

import "strconv"

// Environ gives the variables that point programs in a box at the proxy on port
// of the box's loopback. Both cases, because curl reads only the lower one of
// http_proxy and other programs only the upper one. The box's own loopback is
// left out: a test that asks the server it started itself asks nobody outside.
func Environ(port int) []string {
	const own = "127.0.0.1,localhost,::1"
	url := "http://127.0.0.1:" + strconv.Itoa(port)
	return []string{
		"http_proxy=" + url, "https_proxy=" + url, "no_proxy=" + own,
		"HTTP_PROXY=" + url, "HTTPS_PROXY=" + url, "NO_PROXY=" + own,
	}
}

package egress

import "strconv"

// Environ gives the variables that point programs in a box at the proxy on port
// of the box's loopback. Both cases, because curl reads only the lower one of
// http_proxy and other programs only the upper one. There is no no_proxy:
// nothing can be reached without the proxy.
func Environ(port int) []string {
	url := "http://127.0.0.1:" + strconv.Itoa(port)
	return []string{
		"http_proxy=" + url, "https_proxy=" + url,
		"HTTP_PROXY=" + url, "HTTPS_PROXY=" + url,
	}
}

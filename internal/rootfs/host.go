// Package rootfs says what a box's root file system is made of. For image
// "host" that is the runner's own tools, read-only, and nothing else: a list of
// folders to bind and a handful of made-up files, as a value that any engine
// can put in place.
//
// It shows by name, never by default: what is not in the list is not in the
// box. There is no home, no /var, no /run, no socket of the host, and of /etc
// only what the loader, certificates and name look-ups need.
package rootfs

import (
	"encoding/pem"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
)

// View is a root file system: what to bind, link and write into an empty one.
type View struct {
	// Binds are host folders and files, shown read-only at the same path.
	Binds []string
	// Real is where a bind led that is a link on the host, or lies behind one, when
	// the host was read: before any step, so that no step can have put it there.
	Real map[string]string
	// Links are symbolic links, path to target.
	Links map[string]string
	// Files are small made-up files, path to content.
	Files map[string]string
	// Path is the box's PATH.
	Path []string
	// CABundle is the certificate bundle inside the box; empty if there is none.
	CABundle string
}

// Host is what is asked of the host to make its View.
type Host struct {
	Getenv  func(string) string
	Homes   []string // folders that hold somebody's home; never shown
	Network bool     // the host's network: names must resolve as on the host
}

// standardPath is what a box has on PATH besides toolchains.
var standardPath = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// etcShown are the parts of /etc that programs cannot do without. Not the
// whole of any folder that can hold a key: of /etc/ssl, the public part only.
var etcShown = []string{
	"/etc/ld.so.cache", "/etc/alternatives",
	"/etc/ssl/certs", "/etc/ssl/cert.pem", "/etc/ssl/openssl.cnf",
	"/etc/pki/tls/certs", "/etc/pki/tls/cert.pem", "/etc/pki/tls/openssl.cnf", "/etc/pki/ca-trust/extracted",
	"/etc/localtime", "/etc/os-release",
}

// neverToolchain are folders that no PATH entry can make visible.
var neverToolchain = []string{"/home", "/root", "/run", "/var", "/tmp", "/etc", "/proc", "/sys", "/dev", "/boot", "/mnt", "/media", "/srv", "/lost+found", "/workspace", "/step"}

var caBundles = []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"}

// HostView reads which of the known folders this host has.
func HostView(h Host) View {
	v := View{Links: map[string]string{}, Files: map[string]string{}}
	v.bind("/usr")
	top, _ := filepath.Glob("/lib*")
	for _, p := range append([]string{"/bin", "/sbin"}, top...) {
		st, err := os.Lstat(p)
		switch {
		case err != nil:
		case st.Mode()&fs.ModeSymlink != 0:
			if t, err := os.Readlink(p); err == nil {
				v.Links[p] = t
			}
		case st.IsDir():
			v.bind(p)
		}
	}
	v.bind("/opt/hostedtoolcache")
	for _, dir := range filepath.SplitList(h.Getenv("PATH")) {
		if t := toolchain(dir, h.Homes); t != "" && !v.shows(t) {
			v.bind(t)
		}
	}
	for _, p := range etcShown {
		v.bind(p)
	}
	java, _ := filepath.Glob("/etc/java*") // a JDK's configuration is a link into it
	for _, p := range java {
		v.bind(p)
	}
	v.Files["/etc/passwd"] = "root:x:0:0:root:/step/home:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
	v.Files["/etc/group"] = "root:x:0:\nnogroup:x:65534:\n"
	v.Files["/etc/hosts"] = hosts("box")
	names := "files"
	if h.Network {
		names = "files dns"
		if b, err := os.ReadFile("/etc/hosts"); err == nil {
			v.Files["/etc/hosts"] = string(b)
		}
		if b, err := os.ReadFile("/etc/resolv.conf"); err == nil {
			v.Files["/etc/resolv.conf"] = string(b)
		}
	}
	v.Files["/etc/nsswitch.conf"] = "passwd: files\ngroup: files\nshadow: files\nhosts: " + names + "\nnetworks: files\nprotocols: files\nservices: files\n"
	v.Path = v.path(filepath.SplitList(h.Getenv("PATH")))
	for _, p := range caBundles {
		if _, err := os.Stat(p); err == nil {
			v.CABundle = p
			break
		}
	}
	if file := h.Getenv("SSL_CERT_FILE"); filepath.IsAbs(file) && file != v.CABundle {
		if text := certificates(file); text != "" {
			v.Files[ExtraCA] = text
			v.CABundle = ExtraCA
		}
	}
	sort.Strings(v.Binds)
	return v
}

// bind shows a path as it is on the host, if it is there. A link into a folder
// that is shown anyway is shown as a link, which costs no mount.
func (v *View) bind(p string) {
	if _, err := os.Stat(p); err != nil {
		return
	}
	if t, err := os.Readlink(p); err == nil {
		to := t
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(p), to)
		}
		if v.shows(filepath.Clean(to)) {
			v.Links[p] = t
			return
		}
	}
	v.Binds = append(v.Binds, p)
	if real, err := filepath.EvalSymlinks(p); err == nil && real != p {
		if v.Real == nil {
			v.Real = map[string]string{}
		}
		v.Real[p] = real
	}
}

// For gives the view for one box: a copy with the box's name in it.
func (v View) For(hostname string) View {
	files := make(map[string]string, len(v.Files))
	for p, text := range v.Files {
		files[p] = text
	}
	if _, network := files["/etc/resolv.conf"]; !network {
		files["/etc/hosts"] = hosts(hostname)
	}
	v.Files = files
	return v
}

// WithHosts gives the view with more lines in its hosts file.
func (v View) WithHosts(lines []string) View {
	if len(lines) == 0 {
		return v
	}
	files := make(map[string]string, len(v.Files))
	for p, text := range v.Files {
		files[p] = text
	}
	for _, l := range lines {
		files["/etc/hosts"] += l + "\n"
	}
	v.Files = files
	return v
}

func hosts(hostname string) string {
	return "127.0.0.1 localhost " + hostname + "\n::1 localhost ip6-localhost ip6-loopback\n"
}

// shows says whether a path is inside something that is bound already.
func (v *View) shows(p string) bool {
	for _, b := range v.Binds {
		if under(p, b) {
			return true
		}
	}
	return false
}

// path keeps the caller's order for what can be seen in the box and adds the
// standard folders.
func (v *View) path(caller []string) []string {
	var out []string
	seen := map[string]bool{}
	add := func(p string) {
		if !seen[p] {
			seen[p] = true
			out = append(out, p)
		}
	}
	standard := map[string]bool{}
	for _, p := range standardPath {
		standard[p] = true
	}
	for _, dir := range caller {
		dir = filepath.Clean(dir)
		real, err := filepath.EvalSymlinks(dir)
		if err != nil || !filepath.IsAbs(dir) || standard[dir] {
			continue
		}
		if v.shows(dir) && v.shows(real) {
			add(dir)
		}
	}
	for _, p := range standardPath {
		add(p)
	}
	return out
}

// toolchain gives the folder to show for a PATH entry: the folder above a bin
// folder, or the entry itself. Empty if it must not or need not be shown.
func toolchain(dir string, homes []string) string {
	if !filepath.IsAbs(dir) {
		return ""
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return ""
	}
	root := real
	if b := filepath.Base(real); b == "bin" || b == "sbin" {
		root = filepath.Dir(real)
	}
	// A folder at the top of the tree is too much to show for one entry.
	if strings.Count(root, "/") < 2 {
		if root == real || strings.Count(real, "/") < 2 {
			return ""
		}
		root = real
	}
	for _, no := range append(append([]string{}, neverToolchain...), homes...) {
		if no != "" && no != "/" && (under(root, no) || under(no, root)) {
			return ""
		}
	}
	if under(root, "/usr") {
		return ""
	}
	return root
}

// ExtraCA is where a box finds the certificates that the caller trusts by
// SSL_CERT_FILE, as on a runner whose firewall opens TLS.
const ExtraCA = "/etc/untrusted-steps-ca.crt"

// maxBundle bounds a bundle; the usual one has 200 KiB.
const maxBundle = 4 << 20

// certificates reads the certificates of a file, and nothing else that may
// stand in it: some keep a private key in the same file.
func certificates(file string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return ""
	}
	rest, err := io.ReadAll(io.LimitReader(f, maxBundle))
	if err != nil {
		return ""
	}
	var out strings.Builder
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return out.String()
		}
		if block.Type == "CERTIFICATE" {
			_ = pem.Encode(&out, &pem.Block{Type: block.Type, Bytes: block.Bytes})
		}
	}
}

func under(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

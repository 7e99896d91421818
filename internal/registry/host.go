package registry

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/pinned"
	"github.com/untrusted-steps/untrusted-steps/internal/scratch"
)

const (
	maxFile    = 4 << 20 // of a file of settings, or a small archive
	maxAnswer  = 1 << 20
	clientTime = 10 * time.Second
)

// host is this machine, without what belongs to the untrusted side.
type host struct {
	untrusted []string // real paths
	path      []string // folders of programs
}

// NewReader reads this machine for one caller. What lies below the workspace or
// the current folder is not of this machine, but of whoever wrote what is there;
// only a current folder that holds the caller's own home is left out of that.
func NewReader(environ []string, workspace, cwd string) Reader {
	h := &host{}
	r := Reader{Environ: environ, ReadFile: h.readFile, List: h.list, Find: h.find, Run: h.run, Asked: h.asked}
	home := real(r.env("HOME"))
	for _, dir := range []string{workspace, cwd} {
		if dir = real(dir); dir != "" && dir != "/" && (dir == real(workspace) || !inside(home, dir)) {
			h.untrusted = append(h.untrusted, dir)
		}
	}
	h.path = filepath.SplitList(pinned.Path(r.env("PATH"), h.untrusted...))
	return r
}

// real is a path without links; the path itself where nothing is.
func real(path string) string {
	if p, err := filepath.EvalSymlinks(path); err == nil {
		return p
	}
	return path
}

func inside(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

func (h *host) trusted(path string) bool {
	for _, dir := range h.untrusted {
		if inside(path, dir) {
			return false
		}
	}
	return path != ""
}

var errUntrusted = errors.New("it lies in the workspace or the current folder, where settings are not ours to follow")

// readFile asks where the file is that it has opened: a path can change its
// meaning between a look and the next.
func (h *host) readFile(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == unix.ENOTDIR {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	at, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return nil, err
	}
	if !h.trusted(at) {
		return nil, errUntrusted
	}
	if path == os.DevNull {
		return nil, nil
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.New("it is no file")
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = fmt.Errorf("it is larger than %d bytes", maxFile)
	}
	return b, err
}

func (h *host) list(dir string) ([]string, error) {
	if !h.trusted(real(dir)) {
		return nil, errUntrusted
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// find takes a program only from where no project can have put it.
func (h *host) find(name string) (string, error) {
	for _, dir := range h.path {
		p := filepath.Join(dir, name)
		st, err := os.Stat(p)
		if err != nil || !st.Mode().IsRegular() || st.Mode()&0o111 == 0 {
			continue
		}
		if h.trusted(real(p)) {
			return h.named(p, name), nil
		}
	}
	return "", fmt.Errorf("%s is not installed, or only where a project could have put it", name)
}

// named is a program's real path, unless it goes by its name: then a link to it
// says which program it is to be.
func (h *host) named(path, name string) string {
	if to := real(path); filepath.Base(to) == name {
		return to
	}
	return path
}

// command is a client that runs where no project is. Not in a new folder for
// temporary files: clients look in the folders above as well, and that one is
// everybody's.
func (h *host) command(ctx context.Context, env []string, argv []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = "/"
	cmd.Env = append([]string{"PATH=" + strings.Join(h.path, ":"), "LC_ALL=C"}, env...)
	return cmd
}

func (h *host) run(env []string, argv ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), clientTime)
	defer cancel()
	var out bytes.Buffer
	cmd := h.command(ctx, env, argv)
	cmd.Stdout = &limited{&out, maxAnswer}
	if err := pinned.Run(cmd); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("no answer within %v", clientTime)
		}
		return nil, err
	}
	return out.Bytes(), nil
}

// limited fails once more was written than anybody will read.
type limited struct {
	w    io.Writer
	left int
}

func (l *limited) Write(p []byte) (int, error) {
	if l.left -= len(p); l.left < 0 {
		return 0, errors.New("the answer is too long")
	}
	return l.w.Write(p)
}

// asked is a proxy that lets nothing through and says what was asked of it. On
// loopback anybody of this machine could ask, and so have a say in the list: only
// who knows the word that the client was told counts.
func (h *host) asked(env []string, proxyVar, folderVar string, argv ...string) (string, error) {
	own, err := scratch.Make("", scratch.Client)
	if err != nil {
		return "", err
	}
	defer own.Remove()
	dir := own.Path
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer ln.Close()
	ctx, cancel := context.WithTimeout(context.Background(), clientTime)
	defer cancel()
	word := rand.Text()
	target := make(chan string, 1)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(clientTime))
				if to := askedFor(c, word); to != "" {
					select {
					case target <- to:
					default:
					}
				}
				_, _ = io.WriteString(c, "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			}()
		}
	}()
	cmd := h.command(ctx, append(env, proxyVar+"=http://client:"+word+"@"+ln.Addr().String(), folderVar+"="+dir), argv)
	_ = pinned.Run(cmd) // it cannot succeed
	select {
	case to := <-target:
		return to, nil
	default:
		return "", errors.New("it asked for nothing")
	}
}

// askedFor reads the head of a CONNECT; empty if it is none of our client's.
func askedFor(c io.Reader, word string) (to string) {
	auth := "Basic " + base64.StdEncoding.EncodeToString([]byte("client:"+word))
	ours := false
	r := bufio.NewScanner(io.LimitReader(c, 16<<10))
	for first := true; r.Scan() && r.Text() != ""; first = false {
		if w := strings.Fields(r.Text()); first && len(w) == 3 && w[0] == "CONNECT" {
			to = w[1]
		}
		if k, v, ok := strings.Cut(r.Text(), ":"); ok && strings.EqualFold(k, "Proxy-Authorization") {
			ours = strings.TrimSpace(v) == auth
		}
	}
	if !ours {
		return ""
	}
	return to
}

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	// bootWithin bounds a boot, resumeWithin the way from a saved state to the
	// first check. Both take seconds where nothing else runs.
	bootWithin   = 5 * time.Minute
	resumeWithin = 3 * time.Minute
)

// image is what machines are started from, in one folder.
type image struct {
	dir     string
	release func() error // ends its use
}

func (i image) file(name string) string { return filepath.Join(i.dir, name) }

// machine is one that runs.
type machine struct {
	cmd    *exec.Cmd
	dir    string // of its sockets and its console, removed when it ends
	ended  chan struct{}
	stderr bytes.Buffer
}

// start starts a machine, which sees the folder share.
func (i image) start(ctx context.Context, share string, u use) (*machine, error) {
	dir, err := os.MkdirTemp("", "vm-")
	if err != nil {
		return nil, err
	}
	m := &machine{dir: dir, ended: make(chan struct{})}
	m.cmd = exec.CommandContext(ctx, emulator, m.args(i, share, u)...)
	m.cmd.Stderr = &m.stderr
	m.cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.cmd.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	go func() {
		defer close(m.ended)
		_ = m.cmd.Wait()
	}()
	if u == resuming {
		if err := i.resume(ctx, m); err != nil {
			return nil, errors.Join(err, m.stop())
		}
	}
	return m, nil
}

// stop ends the machine, if it has not ended, and takes away what it left.
func (m *machine) stop() error {
	_ = m.cmd.Process.Kill()
	<-m.ended
	return os.RemoveAll(m.dir)
}

// tail is the end of what the machine and its emulator had to say.
func (m *machine) tail() string {
	b, _ := os.ReadFile(m.console())
	text := strings.TrimSpace(string(b))
	if lines := strings.Split(text, "\n"); len(lines) > 15 {
		text = strings.Join(lines[len(lines)-15:], "\n")
	}
	return strings.TrimSpace(text + "\n" + m.stderr.String())
}

// wait waits until done says so, the machine ends, or the time is up.
func (m *machine) wait(ctx context.Context, limit time.Duration, done func() bool) error {
	end := time.After(limit)
	for !done() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-m.ended:
			if done() {
				return nil
			}
			return fmt.Errorf("the machine ended: %s", m.tail())
		case <-end:
			return fmt.Errorf("not within %v: %s", limit, m.tail())
		case <-time.After(100 * time.Millisecond):
		}
	}
	return nil
}

// waiting says whether the machine has come to wait for the host's word.
func (m *machine) waiting() bool {
	b, _ := os.ReadFile(m.console())
	return bytes.Contains(b, []byte("vm: waiting"))
}

// speak tells the machine the time: its own stood still while it was saved. The
// connection must stay open until it is heard, as a serial line takes a few bytes
// at a time.
func (m *machine) speak() (net.Conn, error) {
	c, err := net.Dial("unix", m.word())
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(c, "%d\n", time.Now().Unix()); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// save boots a machine to where it waits, and writes down what it is like.
func (i image) save(ctx context.Context) error {
	share, err := os.MkdirTemp("", "vm-share-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(share)
	m, err := i.start(ctx, share, saving)
	if err != nil {
		return err
	}
	defer m.stop()
	if err := m.wait(ctx, bootWithin, m.waiting); err != nil {
		return fmt.Errorf("boot: %w", err)
	}
	time.Sleep(3 * time.Second) // what systemd still does is better done once
	q, err := m.qmp()
	if err != nil {
		return err
	}
	defer q.c.Close()
	if err := q.do("migrate-set-capabilities", ignoreShared); err != nil {
		return err
	}
	if err := q.do("migrate", map[string]any{"uri": "exec:cat >" + i.file("state")}); err != nil {
		return err
	}
	if err := q.until(ctx, time.Minute, "query-migrate", "completed"); err != nil {
		return err
	}
	return q.do("quit", nil)
}

// ignoreShared leaves the memory where it is, in its file.
var ignoreShared = map[string]any{"capabilities": []any{map[string]any{"capability": "x-ignore-shared", "state": true}}}

func (i image) resume(ctx context.Context, m *machine) error {
	q, err := m.qmp()
	if err != nil {
		return err
	}
	defer q.c.Close()
	if err := q.do("migrate-set-capabilities", ignoreShared); err != nil {
		return err
	}
	if err := q.do("migrate-incoming", map[string]any{"uri": "exec:cat " + i.file("state")}); err != nil {
		return err
	}
	return q.until(ctx, time.Minute, "query-status", "running")
}

// qmp is a connection to the emulator's monitor.
type qmp struct {
	c net.Conn
	r *bufio.Reader
}

func (m *machine) qmp() (*qmp, error) {
	var c net.Conn
	err := m.wait(context.Background(), time.Minute, func() (ok bool) {
		var err error
		c, err = net.Dial("unix", m.monitor())
		return err == nil
	})
	if err != nil {
		return nil, fmt.Errorf("the emulator's monitor: %w", err)
	}
	q := &qmp{c: c, r: bufio.NewReader(c)}
	if _, err := q.r.ReadBytes('\n'); err != nil { // its greeting
		return nil, errors.Join(err, c.Close())
	}
	if err := q.do("qmp_capabilities", nil); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return q, nil
}

func (q *qmp) do(command string, arguments map[string]any) error {
	_, err := q.ask(command, arguments)
	return err
}

// ask gives a command and reads up to its answer; in between are events.
func (q *qmp) ask(command string, arguments map[string]any) (status string, err error) {
	request := map[string]any{"execute": command}
	if arguments != nil {
		request["arguments"] = arguments
	}
	b, err := json.Marshal(request)
	if err != nil {
		return "", err
	}
	_ = q.c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := q.c.Write(append(b, '\n')); err != nil {
		return "", fmt.Errorf("%s: %w", command, err)
	}
	for {
		line, err := q.r.ReadBytes('\n')
		if err != nil {
			return "", fmt.Errorf("%s: %w", command, err)
		}
		var a struct {
			Return *struct{ Status string }
			Error  *struct{ Desc string }
		}
		switch err := json.Unmarshal(line, &a); {
		case err != nil:
			return "", fmt.Errorf("%s: %w", command, err)
		case a.Error != nil:
			return "", fmt.Errorf("%s: %s", command, a.Error.Desc)
		case a.Return != nil:
			return a.Return.Status, nil
		}
	}
}

// until asks again and again until the status is the wanted one.
func (q *qmp) until(ctx context.Context, limit time.Duration, command, want string) error {
	end := time.Now().Add(limit)
	for {
		status, err := q.ask(command, nil)
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case status == want:
			return nil
		case status == "failed" || time.Now().After(end):
			return fmt.Errorf("%s says %q, want %q", command, status, want)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

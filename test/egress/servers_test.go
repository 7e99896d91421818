package egress_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/untrusted-steps/untrusted-steps/internal/boxtest/need"
)

// account is who the servers run as: they refuse root, or should not be root.
type account struct {
	name     string
	uid, gid int
}

func (a account) credential() *syscall.Credential {
	return &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
}

// servers are real ones, each from Debian's package, with data of its own.
type servers struct {
	*lab
	as              account
	ssh, pg, redis  *server
	sshFiles        map[string][]byte // what a client needs to log in
	repository      string            // of sshd's account
	redisSeen       int               // connections of the tests' own
	commit, payload string
}

// haveServers says what is missing to start them.
func haveServers() error {
	var errs []error
	for _, p := range []string{"/usr/sbin/sshd", "/usr/bin/ssh-keygen", "/usr/bin/redis-server", "/usr/bin/redis-cli", "/usr/bin/psql", "/usr/bin/git"} {
		if _, err := os.Stat(p); err != nil {
			errs = append(errs, err)
		}
	}
	if _, err := postgresBin(); err != nil {
		errs = append(errs, err)
	}
	if _, err := user.Lookup("postgres"); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w; apt-get install openssh-server openssh-client postgresql postgresql-client redis-server redis-tools git", err)
	}
	return nil
}

func postgresBin() (string, error) {
	list, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil || len(list) == 0 {
		return "", errors.New("there is no initdb below /usr/lib/postgresql")
	}
	return filepath.Dir(list[len(list)-1]), nil
}

func newServers(t *testing.T) *servers {
	t.Helper()
	need.Met(t, "servers", haveServers())
	s := &servers{lab: newLab(t)}
	// Of the accounts that the packages make it is the one with a shell.
	u, err := user.Lookup("postgres")
	if err != nil {
		t.Fatal(err)
	}
	s.as.name = u.Username
	s.as.uid, _ = strconv.Atoi(u.Uid)
	s.as.gid, _ = strconv.Atoi(u.Gid)
	s.startSSH(t)
	s.startPostgres(t)
	s.startRedis(t)
	return s
}

// give makes a folder of the servers' account.
func (s *servers) give(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(s.dir, name)
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, s.as.uid, s.as.gid)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// command runs a program as the servers' account.
func (s *servers) command(t *testing.T, dir string, argv ...string) string {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + dir, "LC_ALL=C", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.as.credential()}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func (s *servers) startSSH(t *testing.T) {
	t.Helper()
	dir := s.give(t, "ssh")
	s.repository = filepath.Join(dir, "repo.git")
	s.payload = "a file that came by ssh\n"
	s.command(t, dir, "git", "init", "-q", "--initial-branch=main", "work")
	if err := os.WriteFile(filepath.Join(dir, "work", "hello.txt"), []byte(s.payload), 0o644); err != nil {
		t.Fatal(err)
	}
	work := filepath.Join(dir, "work")
	s.command(t, work, "git", "add", "hello.txt")
	s.command(t, work, "git", "commit", "-q", "-m", "one")
	s.commit = s.command(t, work, "git", "rev-parse", "HEAD")
	s.command(t, dir, "git", "clone", "-q", "--bare", "work", s.repository)
	for _, key := range []string{"host", "client"} {
		s.command(t, dir, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", key, "-f", filepath.Join(dir, key))
	}
	read := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	host := strings.Join(strings.Fields(string(read("host.pub")))[:2], " ")
	var known string
	for _, at := range []string{"git.internal", "[localhost]:2222", "[127.0.0.1]:2222"} {
		known += at + " " + host + "\n"
	}
	s.sshFiles = map[string][]byte{"client": read("client"), "known": []byte(known)}
	conf := fmt.Sprintf(`Port 22
Port 2222
ListenAddress 127.0.0.1
HostKey %[1]s/host
AuthorizedKeysFile %[1]s/client.pub
PasswordAuthentication no
UsePAM no
StrictModes no
PidFile none
LogLevel VERBOSE
`, dir)
	file := filepath.Join(dir, "conf")
	if err := os.WriteFile(file, []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	s.ssh = s.serve(t, s.as, "port 22.", "/usr/sbin/sshd", "-D", "-e", "-f", file)
}

func (s *servers) startPostgres(t *testing.T) {
	t.Helper()
	bin, err := postgresBin()
	if err != nil {
		t.Fatal(err)
	}
	dir := s.give(t, "postgres")
	data := filepath.Join(dir, "data")
	s.command(t, dir, filepath.Join(bin, "initdb"), "--no-sync", "--auth=trust", "--username=tester", "--encoding=UTF8", "--locale=C", "-D", data)
	s.pg = s.serve(t, s.as, "ready to accept connections", filepath.Join(bin, "postgres"), "-D", data, "-k", dir, "-h", "127.0.0.1", "-p", "5432",
		"-c", "fsync=off", "-c", "log_connections=on", "-c", "logging_collector=off", "-c", "shared_buffers=16MB")
}

func (s *servers) startRedis(t *testing.T) {
	t.Helper()
	dir := s.give(t, "redis")
	s.redis = s.serve(t, s.as, "Ready to accept connections", "/usr/bin/redis-server", "--bind", "127.0.0.1", "10.77.0.5", "--port", "6379",
		"--dir", dir, "--save", "", "--appendonly", "no", "--protected-mode", "no", "--daemonize", "no")
}

// reached is how many connections each server has seen, by its own count.
type reached struct{ ssh, pg, redis int }

func (s *servers) reached(t *testing.T) reached {
	t.Helper()
	c := s.dial(t, "127.0.0.1:6379")
	defer c.Close()
	s.redisSeen++
	if _, err := c.Write([]byte("INFO stats\r\n")); err != nil {
		t.Fatal(err)
	}
	seen := -1
	for r := bufio.NewReader(c); seen < 0; {
		text, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("ask redis for its connections: %v", err)
		}
		if n, ok := strings.CutPrefix(strings.TrimSpace(text), "total_connections_received:"); ok {
			if seen, err = strconv.Atoi(n); err != nil {
				t.Fatal(err)
			}
		}
	}
	return reached{ssh: s.ssh.count("Connection from "), pg: s.pg.count("connection received:"), redis: seen - s.redisSeen}
}

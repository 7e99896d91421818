package kern

import (
	"io"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

func TestPayloadBytesThatAreMissingAreUnknown(t *testing.T) {
	for name, c := range map[string]struct {
		in   string
		want Payload
	}{
		"nothing at all":                       {"", Payload{}},
		"one byte":                             {"\x01", Payload{Len: 1, Ran: Yes}},
		"no box":                               {"\x00\x00", Payload{Len: 2}},
		"two bytes, cap in force":              {"\x01\x01", Payload{Len: 2, Ran: Yes, Capped: Yes}},
		"two bytes, cap not in force":          {"\x01\x02", Payload{Len: 2, Ran: Yes, Capped: No}},
		"two bytes, cap undetermined":          {"\x01\x00", Payload{Len: 2, Ran: Yes}},
		"a cap byte nobody knows":              {"\x01\x07", Payload{Len: 2, Ran: Yes}},
		"three bytes, no memory kill":          {"\x01\x01\x00", Payload{Len: 3, Ran: Yes, Capped: Yes, OOM: No}},
		"four bytes, memory kill and SIGKILL":  {"\x01\x01\x01\x09", Payload{Len: 4, Ran: Yes, Capped: Yes, OOM: Yes, Signal: 9, Signaled: Yes}},
		"four bytes, ended by itself":          {"\x01\x01\x00\x00", Payload{Len: 4, Ran: Yes, Capped: Yes, OOM: No, Signaled: No}},
		"a longer payload keeps what is known": {"\x01\x01\x00\x00\xff\xff", Payload{Len: 6, Ran: Yes, Capped: Yes, OOM: No, Signaled: No}},
	} {
		t.Run(name, func(t *testing.T) {
			if d := cmp.Diff(c.want, readPayload(strings.NewReader(c.in))); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestPayloadWithoutEndIsBounded(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	go func() {
		defer w.Close()
		for {
			if _, err := w.Write(make([]byte, 4096)); err != nil {
				return
			}
		}
	}()
	if p := readPayload(r); p.Len != maxPayload {
		t.Errorf("read %d bytes, want %d", p.Len, maxPayload)
	}
}

func TestAliveTellsBuildingFromDone(t *testing.T) {
	for name, c := range map[string]struct {
		chunks []string
		closed bool
		want   Setup
	}{
		"an older kern says nothing":              {closed: true, want: SetupUnknown},
		"still open and silent":                   {want: SetupUnknown},
		"taken, still building":                   {chunks: []string{"A"}, want: SetupRunning},
		"taken, and the first process runs":       {chunks: []string{"A"}, closed: true, want: SetupDone},
		"taken, and it failed":                    {chunks: []string{"A", "x"}, want: SetupDone},
		"a first byte that is not an A is nobody": {chunks: []string{"x"}, closed: true, want: SetupUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, w := io.Pipe()
				var a alive
				go a.follow(r)
				for _, s := range c.chunks {
					if _, err := w.Write([]byte(s)); err != nil {
						t.Fatal(err)
					}
				}
				if c.closed {
					w.Close()
				}
				synctest.Wait()
				if got := a.Setup(); got != c.want {
					t.Errorf("got %v, want %v", got, c.want)
				}
				r.Close()
			})
		})
	}
}

func TestEnvironmentIsMadeOfNothing(t *testing.T) {
	for k, v := range map[string]string{"KERN_SCOPE": "1", "KERN_ALLOW_UNCAPPED": "1", "KERN_SECCOMP": "denylist", "XDG_RUNTIME_DIR": "/evil", "LD_PRELOAD": "/evil.so", "GITHUB_TOKEN": "s"} {
		t.Setenv(k, v)
	}
	want := []string{
		"PATH=/usr/bin:/bin", "LANG=C.UTF-8", "HOME=/h", "XDG_RUNTIME_DIR=/x",
		"XDG_CACHE_HOME=/h/cache", "XDG_CONFIG_HOME=/h/config", "XDG_DATA_HOME=/h/data",
		"KERN_NO_SCOPE=1", "KERN_SECCOMP=allowlist", "KERN_STARTED_FD=4", "KERN_ALIVE_FD=5",
	}
	if d := cmp.Diff(want, environment("/x", "/h", 4, 5)); d != "" {
		t.Error(d)
	}
	for _, kv := range environment("/x", "/h", 0, 0) {
		if _, v, _ := strings.Cut(kv, "="); v == "" {
			t.Errorf("%s is set and empty, which some of kern's code takes for set", kv)
		}
	}
}

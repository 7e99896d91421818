package host

import (
	"context"
	"fmt"
	"strings"
)

// passwordlessSudo asks sudo for nothing. It is no fault either way.
func passwordlessSudo(ctx context.Context, x *examination) Finding {
	if x.m.UID == 0 {
		return Finding{Status: OK, Found: "this is root, who needs none"}
	}
	if err := x.m.Sudo(ctx); err != nil {
		return Finding{Status: OK, Found: fmt.Sprintf("sudo without a password does not work: %v", err),
			Costs: "what a normal user may not change, --host-setup cannot change"}
	}
	return Finding{Status: OK, Found: "sudo works without a password",
		Costs: "code that runs on this machine outside of boxes may become root; in a box there is no sudo"}
}

// dockerSockets are the usual ones of the machine; DOCKER_HOST names others.
var dockerSockets = []string{"/run/docker.sock", "/var/run/docker.sock", "/run/podman/podman.sock"}

// dockerSocket connects to it. Who can talk to Docker is root of the machine.
func dockerSocket(_ context.Context, x *examination) Finding {
	sockets := dockerSockets
	if s, ok := strings.CutPrefix(x.m.Getenv("DOCKER_HOST"), "unix://"); ok {
		sockets = append([]string{s}, sockets...)
	}
	for _, s := range sockets {
		if x.m.Dial(s) != nil {
			continue
		}
		f := Finding{Status: OK, Found: "this account can talk to the engine of containers at " + s}
		if x.m.UID != 0 || x.place.contained() {
			f.Status = Warn
			f.Costs = "code that runs here outside of boxes can become root of the machine through it; no box can reach it"
			f.Verify = "docker version   # is to be refused"
		}
		switch {
		case f.Status == OK:
		case x.place == Hosted:
			f.Fix = []string{"# nothing to do for steps in boxes; run nothing untrusted outside of them"}
			f.Verify = ""
		case x.place == Job:
			f.Fix = []string{"# every job container gets the socket; take the key container: out of this job"}
		case x.place.contained():
			f.Fix = []string{"# start this container without -v " + s}
		default:
			f.Fix = []string{"sudo gpasswd --delete \"$(id -un)\" docker   # then log in again, or restart the runner's service"}
		}
		return f
	}
	return Finding{Status: OK, Found: "no engine of containers can be reached"}
}

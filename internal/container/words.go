// Package container owns the words that a container is started with so that
// boxes can be made in it. Whoever refuses because a word is missing says all of
// them: with one of two added, the next run would be refused for the other.
//
// Each word was found by leaving it away, on cgroup1 and cgroup2 and with both
// engines; docs/container.md has what happens then, and test/container does it.
package container

import "strings"

// Profile is the file that `untrusted-steps seccomp` is printed to in all that we
// tell people to type.
const Profile = "seccomp.json"

const program = "untrusted-steps"

// Who is how a container's user stands to the machine.
type Who struct {
	// Root is root of the container, and no user namespace makes it another user
	// of the machine: its boxes get an id of their own, which takes a capability.
	Root bool
}

// The words, for docker run and for container.options of a job.
const (
	unmasked  = "--security-opt systempaths=unconfined"
	appArmor  = "--security-opt apparmor=unconfined"
	filter    = "--security-opt seccomp="
	groups    = "--security-opt writable-cgroups=true"
	namespace = "--cgroupns=private"
	mounts    = "--cap-add SYS_ADMIN"
	// What a normal user's boxes do without.
	nothing = "--cap-drop ALL --security-opt no-new-privileges"
	user    = "--user UID:GID"
)

// Options are the words for Docker, with the filter that is given: a file of the
// machine that runs docker, or unconfined.
func Options(w Who, seccomp string) string {
	words := []string{filter + seccomp, appArmor, unmasked, namespace, groups}
	if w.Root {
		words = append([]string{mounts}, words...)
	}
	return strings.Join(words, " ")
}

// Least are Options with all else taken away that a container has by default.
func Least(seccomp string) string {
	return user + " " + nothing + " " + Options(Who{}, seccomp)
}

// Fix is what whoever starts this container can do, so that boxes can be made in
// it and capped. Nobody in it can.
func Fix(w Who, command string) []string {
	command = inImage(command)
	lines := []string{
		"# start this container as the normal user whom the workspace belongs to, with what boxes are made of; " +
			Profile + " is what `untrusted-steps seccomp` prints (docs/container.md). Docker 28 and newer:",
		"docker run " + Least(Profile) + command,
	}
	if w.Root {
		lines = append(lines, "# or as root of the container:", "docker run "+Options(w, Profile)+command)
	}
	return append(lines,
		"# Podman, which has other names for two of them:",
		"podman run "+podman(Options(Who{Root: true}, Profile))+command,
		"# Docker before 28 hands out control groups with everything else only; this container may then do what root of the machine may:",
		"docker run "+namespace+" --privileged"+command,
		"# or run it on the machine itself, outside any container",
	)
}

// inImage is a command for the end of a docker run. Our own image has the program
// for its entrypoint, and most others have none: named here, it is the same for all.
func inImage(command string) string {
	if rest, ok := strings.CutPrefix(command, program+" "); ok {
		return " --entrypoint " + program + " IMAGE " + rest
	}
	return " IMAGE " + command
}

func podman(words string) string {
	return strings.NewReplacer(unmasked, "--security-opt unmask=ALL", " "+groups, "").Replace(words)
}

// Hint is Fix in one line, for where it is not known that this is a container.
func Hint(w Who) string {
	return "# in a container: start it with " + Options(w, Profile) + " (" + Profile + " is what `untrusted-steps seccomp` prints)"
}

// JobOptions is Fix for a job container of GitHub Actions: what belongs into the
// workflow. No file of the workflow's is there when the container is made.
func JobOptions(w Who) []string {
	return []string{
		"# in the workflow take the key container: out of this job, whose boxes need no image; or give it what boxes are made of (docs/container.md):",
		"options: " + Options(w, "unconfined"),
	}
}

// PodFix is Fix for a pod of Kubernetes but for caps: where, and which fields.
func PodFix(where string) []string {
	return []string{
		where,
		"hostUsers: false   # of the pod's spec; docs/kubernetes.md has all of it",
		"securityContext: {runAsUser: 1001, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}, procMount: Unmasked, " +
			"seccompProfile: {type: Localhost, localhostProfile: untrusted-steps.json}, appArmorProfile: {type: Unconfined}}",
	}
}

// PodGroups is what lets a pod divide its control group.
func PodGroups() []string {
	return []string{
		"# no field of a pod lets it divide its control group; a runtime class does, on nodes with containerd 2.1 or newer and cgroup_writable = true (docs/kubernetes.md):",
		"runtimeClassName: cgroup-writable   # of the pod's spec",
	}
}

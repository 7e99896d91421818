package kern

import (
	"path/filepath"
	"strconv"
)

// maxRuntimeDir is how long kern's runtime folder may be: a socket's path has
// 108 bytes, and kern adds a name of its own.
const maxRuntimeDir = 80

// environment is all that kern is given. It is built from nothing: a step that
// ran earlier in the job can have written KERN_SECCOMP, KERN_SCOPE,
// KERN_ALLOW_UNCAPPED or XDG_RUNTIME_DIR into the job's variables, and each of
// them weakens or redirects the next box.
//
// startedFD and aliveFD are left out where they are 0.
func environment(runtime, home string, startedFD, aliveFD int) []string {
	env := []string{
		"PATH=/usr/bin:/bin",
		"LANG=C.UTF-8",
		"HOME=" + home,
		"XDG_RUNTIME_DIR=" + runtime,
		"XDG_CACHE_HOME=" + filepath.Join(home, "cache"),
		"XDG_CONFIG_HOME=" + filepath.Join(home, "config"),
		"XDG_DATA_HOME=" + filepath.Join(home, "data"),
		// The caps are ours and already in force. Without this kern would ask
		// a service manager for a group of its own.
		"KERN_NO_SCOPE=1",
		// Deny by default, said aloud, so that no build's default decides it.
		"KERN_SECCOMP=allowlist",
	}
	if startedFD > 0 {
		env = append(env, "KERN_STARTED_FD="+strconv.Itoa(startedFD))
	}
	if aliveFD > 0 {
		env = append(env, "KERN_ALIVE_FD="+strconv.Itoa(aliveFD))
	}
	return env
}

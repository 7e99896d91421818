// Package registry finds out where this machine's package clients take their
// packages from, for the presets of an allowlist that no list of ours could
// fill: preset:npm on a machine with a mirror is the mirror.
//
// It owns the reading: of the environment, of the files of the user and of the
// machine and, where those say nothing, of what the client itself has built in.
// Out come rules for single hosts, each with the place where it stood.
//
// It refuses what belongs to the untrusted side. Clients also take settings from
// the project they stand in (.npmrc, .cargo/config.toml, a virtual environment):
// a file below the workspace or the current folder is never read, whichever way
// a path leads there, and no program from there is run. A client that has to be
// asked runs outside any box, so it runs in the root folder, where no project
// is, with few variables and little time. URLs may hold credentials: only host
// and port of them are kept, in errors too.
//
//	reader := registry.NewReader(os.Environ(), workspace, cwd)
//	preset, err := reader.Preset("npm")
//	// preset.Rules: mirror.example:443, preset.From: npm's registry in ~/.npmrc
package registry

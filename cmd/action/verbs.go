package main

import (
	"fmt"
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/host"
)

// verb is one word of the command line, and all there is to say of it. What is
// parsed, explained and offered by a shell comes from this table alone.
type verb struct {
	name     string
	does     string // one line
	takes    *operands
	flags    []flagDef
	about    []string // paragraphs; one that starts with a blank is shown as it is
	exits    []exit
	files    []entry
	env      []entry
	examples []example
	also     []string // what others call it
	hidden   bool     // for the shell's scripts, not for people
	run      func(a *app, args []string) int
}

// operands are what stands on a command line beside flags; nil is nothing.
type operands struct {
	name           string
	kind           kind // aFile or aWord
	words          func() []string
	optional, many bool
}

// entry is a file or some variables, and what they are for.
type entry struct{ name, does string }

// example is a command line that works, with how it ends where that is not 0.
type example struct{ line, does string }

type exit struct {
	code int
	does string
}

// The exit statuses as help explains them.
var (
	okExit        = exit{exitPass, "it was done"}
	usageExit     = exit{exitUsage, "the file or the flags are wrong; nothing was done; what and where is on standard error"}
	unwrittenExit = exit{exitNoVerdict, "the answer could not be written"}
	cancelledExit = exit{exitCancelled, "cancelled"}

	runExits = []exit{
		{exitPass, "no step closes the gate"},
		{exitFail, "some step failed (by its exit code, a fault or a violation) or was skipped, and has no continueOnError"},
		{exitUsage, "the file, the flags or the inputs are wrong; nothing ran, there is no report; file:line:column is on standard error"},
		{exitRefused, "refused: this host cannot enforce what the plan asks; nothing ran; the cause and the command that helps are on standard error"},
		{exitNoVerdict, "no verdict: our proxy, control group or engine failed for some step"},
		{exitCancelled, "cancelled; the report says so"},
	}
)

// The files and variables that several verbs share.
var (
	proofsKept = entry{"$XDG_STATE_HOME/untrusted-steps/proofs", "what was proved of this host since it was started (~/.local/state where the variable is not set)"}
	kernCache  = entry{"$XDG_CACHE_HOME/untrusted-steps/kern", "the kern binary that kern install fetched (~/.cache where the variable is not set)"}
	imageCache = entry{"$XDG_CACHE_HOME/untrusted-steps/images", "images that steps run in (~/.cache where the variable is not set)"}
	setupKept  = entry{"$XDG_CACHE_HOME/untrusted-steps/setups", "what setups with setupCache made (~/.cache where the variable is not set)"}
	imageEnv   = entry{"DOCKER_CONFIG, REGISTRY_AUTH_FILE, HTTPS_PROXY, NO_PROXY", "who we are to registries of images, as docker login wrote it, and how they are reached"}
	colourEnv  = entry{"NO_COLOR, TERM", "any value of NO_COLOR takes the colour from a terminal, TERM=dumb the line of progress too"}
	runscCache = entry{"$XDG_CACHE_HOME/untrusted-steps/runsc", "the runsc binary that runsc build made"}
	runscEnv   = entry{"RUNSC_BIN, PATH, RUNSC_PLATFORM", "engine gvisor: the runsc binary, or where to look for one; its SHA-256 has to be one that is known. The platform is systrap, or kvm where it is asked for"}
	kernEnv    = entry{"KERN_BIN, PATH", "the kern binary, or where to look for one; its SHA-256 has to be one that is known"}
	cacheEnv   = entry{"XDG_CACHE_HOME, HOME", "where kern is installed"}
	hiddenEnv  = entry{"HOME, XDG_RUNTIME_DIR, XDG_CACHE_HOME, XDG_CONFIG_HOME, XDG_DATA_HOME, XDG_STATE_HOME", "folders that no step may be shown whole"}
	presetEnv  = entry{"npm_config_*, PIP_*, GOENV, GOPROXY, CARGO_HOME, ...", "what package clients are set up with, for preset:NAME"}
	passedEnv  = entry{"any that passEnv names", "handed to the step, and masked in everything that is written"}
)

// aSteps is the steps file of help, which a test loads.
const aSteps = `  steps:
    - id: build
      run: make
    - id: test
      needs: build
      run: npm test
      timeoutS: 300
      egressAllow: [packages.example.com]`

// verbs is filled by a function, because help lists the verbs.
func verbs() []*verb {
	stepsFile := &operands{name: "FILE", kind: aFile}
	snapshotFile := &operands{name: "FILE.tar.gz", kind: aFile}
	return []*verb{
		{
			name: "run", does: "run the steps of a file, each in its own box", run: (*app).run, also: []string{"exec", "start", "test", "execute"},
			takes: stepsFile, flags: planFlags,
			about: []string{
				"FILE is a steps file; - reads it from standard input:",
				aSteps,
				"Each step runs in a box of its own: no network but what egressAllow names, caps on memory, processes, time and disk, " +
					"no secrets, and a layer over the workspace. If the step passes, what it changed is committed; if it fails, it is dropped. " +
					"Before the first step the controls that boxes rely on are proved on this host, by boxes that try what no step may; one that " +
					"is not seen to hold is exit 3, and nothing runs. A proof is remembered until the machine is started again.",
				"Steps run in the order of the list, and one that failed stops only those that need it. The log is on standard output, " +
					"each line of a step behind its id; a table and the path of the report are at its end.",
				"Inside GitHub Actions (GITHUB_ACTIONS is true) the command without a verb does the same by the inputs of action.yml.",
			},
			exits: runExits,
			files: []entry{
				{"OUT/report.json", "everything; schema report prints its schema"},
				{"OUT/summary.md, report.html, junit.xml, results.sarif", "the same for the job summary, a browser, test reports and code scanning"},
				{"OUT/egress.jsonl, egress-allow.patch", "every request, and after egressMode: audit the list that allows them"},
				{"OUT/steps/ID/stdout.log, stderr.log, changes.patch", "what a step printed and changed"},
				{".NAME.untrusted-steps, beside a workspace called NAME", "what steps write, until it is committed; $XDG_STATE_HOME/untrusted-steps where " +
					"there can be none (~/.local/state where the variable is not set)"},
				proofsKept, kernCache, runscCache, imageCache, setupKept,
			},
			env: []entry{
				colourEnv, kernEnv, runscEnv, hiddenEnv, imageEnv,
				{"TMPDIR", "where the report goes without --out"},
				passedEnv, presetEnv,
				{"PATH, SSL_CERT_FILE", "tools and certificates that a box is shown, outside any home"},
				{"GITHUB_ACTIONS", "true: no colour, no progress; summary, outputs and annotations are written"},
				{"GITHUB_EVENT_NAME, ACTIONS_ID_TOKEN_REQUEST_URL", "the event, which may be refused, and the sign that the job may ask for an OIDC token, which is warned of"},
				{"GITHUB_WORKSPACE, GITHUB_BASE_REF, GITHUB_STEP_SUMMARY, GITHUB_OUTPUT", "the checkout, the base branch, and where summary and outputs go"},
				{"RUNNER_ENVIRONMENT, RUNNER_TEMP, RUNNER_WORKSPACE", "the kind of the runner, and its folders, which no step is shown"},
				{"GITHUB_EVENT_PATH, GITHUB_REPOSITORY, GITHUB_SHA, GITHUB_JOB, GITHUB_WORKFLOW, GITHUB_WORKFLOW_REF, GITHUB_RUN_ID, GITHUB_API_URL, GITHUB_SERVER_URL",
					"where a check run, comment or commit status goes, with the inputs for these"},
				{"KUBERNETES_PORT", "the sign of a pod, which is told what helps in a pod"},
				{"UNTRUSTED_STEPS_*, INPUT_*", "the inputs of the action, without a verb only"},
			},
			examples: []example{
				{"untrusted-steps run steps.yml", "all steps, on the current folder"},
				{"untrusted-steps run steps.yml --only build,test --out ../report", "two of them, with the report where it can be found"},
				{"untrusted-steps run --only-report --json steps.yml >../report.json", "change nothing, and give the report to a program"},
				{"untrusted-steps run --jobs 4 --policy ../policy.yml - <steps.yml", "four at a time, within a policy, from standard input"},
			},
		},
		{
			name: "check", does: "say what is wrong with a steps file", run: (*app).check, also: []string{"validate", "lint", "verify"},
			takes: stepsFile, flags: []flagDef{flagWorkspace.saying("The folder the steps would work in, against which mounts are checked."), flagPolicy},
			about: []string{
				"Nothing runs. Everything that is wrong is listed, each with file:line:column, what was probably meant or what may stand there. FILE may be -. " +
					"Nothing of the host is asked: whether it can enforce the plan is known by run alone.",
			},
			exits: []exit{{exitPass, "nothing is wrong"}, usageExit, unwrittenExit},
			env:   []entry{hiddenEnv, presetEnv, colourEnv},
			examples: []example{
				{"untrusted-steps check steps.yml", "one line if nothing is wrong"},
				{"untrusted-steps check steps.yml --policy ../policy.yml", "and whether it stays within a policy"},
			},
		},
		{
			name: "plan", does: "show what would run, every default filled in", run: (*app).plan, also: []string{"show", "dry-run", "list"},
			takes: stepsFile, flags: of(planFlags, flagJSON.saying("The plan as JSON.")),
			about: []string{
				"The plan is for whoever judges the steps before they run: scripts, order, caps, what may be reached and changed. " +
					"Values of variables are not in it. It takes the flags of run, so that one command line serves both, and runs nothing.",
			},
			exits: []exit{okExit, usageExit, unwrittenExit},
			env:   []entry{hiddenEnv, presetEnv, colourEnv},
			examples: []example{
				{"untrusted-steps plan steps.yml", "all of it"},
				{"untrusted-steps plan --json --only test steps.yml", "one step, for a program"},
				{"untrusted-steps plan --shard 1/2 steps.yml", "what the first of two machines would run"},
			},
		},
		{
			name: "report", does: "write a report.json again in another form", run: (*app).report, also: []string{"convert", "render"},
			takes: &operands{name: "FILE", kind: aFile}, flags: []flagDef{flagFormat},
			about: []string{
				"FILE is a report.json, or the folder with it; - reads it from standard input. It may come from anywhere: what it says acts nowhere, not in the log of " +
					"a runner either. The form is written to standard output.",
			},
			exits: []exit{{exitPass, "it was written, whatever the verdict was"}, {exitUsage, "the file is no report.json, or the flags are wrong"}, unwrittenExit},
			env:   []entry{colourEnv},
			examples: []example{
				{"untrusted-steps report report.json --format table", "the table that the run ended with"},
				{"untrusted-steps report --format junit - <report.json >../junit.xml", "a test report, from standard input"},
			},
		},
		{
			name: "merge", does: "make one report and verdict of those of shards", run: (*app).merge, also: []string{"join", "combine"},
			takes: &operands{name: "REPORT", kind: aFile, many: true},
			flags: []flagDef{
				flagOut.saying("The folder for the report of all. It may not be one that a report lies in, nor be in steps/ of one.").must(), flagFile,
				flagOnly.saying("The steps that the shards were to run, as each of them was told. It goes with --file."),
				flagWorkspace.saying("The workspace of the shards, against which --file is checked."),
				flagPolicy.saying("The policy that all shards must have been held to."), flagJSON,
			},
			about: []string{
				"REPORT is the report.json of a shard (run --shard I/N), the folder with it, or a folder with nothing but such folders. Logs and patches beside it are copied. " +
					"A shard that is missing, there twice, or of other steps closes the gate.",
			},
			exits: runExits,
			files: []entry{{"OUT/", "the same files as a run writes"}},
			env:   []entry{colourEnv, {"GITHUB_ACTIONS, GITHUB_STEP_SUMMARY, GITHUB_OUTPUT", "true: summary, outputs and annotations are written, as by run"}},
			examples: []example{
				{"untrusted-steps merge --out ../all ../part-1 ../part-2", "one report of two"},
				{"untrusted-steps merge --out ../all --file steps.yml ../part-*/report.json", "and they have to be of these steps"},
			},
		},
		{
			name: "schema", does: "print the JSON Schema of steps, report or policy", run: (*app).schema,
			takes:    &operands{name: "steps|report|policy", kind: aWord, words: func() []string { return []string{"steps", "report", "policy"} }, optional: true},
			about:    []string{"steps, which is also taken without a word, is the schema of the steps file, with what each key means and its default. Editors complete and check by it."},
			exits:    []exit{okExit, usageExit, unwrittenExit},
			examples: []example{{"untrusted-steps schema >../steps.schema.json", "for an editor"}, {"untrusted-steps schema policy", "what a policy may say"}},
		},
		{
			name: "seccomp", does: "print the filter for a container that runs steps", run: (*app).seccomp,
			about: []string{
				"Boxes are made with system calls that Docker's own filter keeps from a container. This one is that filter with these calls let through " +
					"and nothing else, for amd64 and arm64, in the form that Docker, Podman, containerd and CRI-O read.",
			},
			exits:    []exit{okExit, usageExit, unwrittenExit},
			examples: []example{{"untrusted-steps seccomp >../seccomp.json", "for docker run --security-opt seccomp=FILE; docs/container.md has the rest"}},
		},
		{
			name: "snapshot", does: "pack the workspace, without what is secret in it", run: (*app).snapshot, also: []string{"pack", "save", "archive"},
			takes: snapshotFile, flags: []flagDef{flagWorkspace.saying("The folder to pack.")},
			about: []string{
				"Files and folders go in with modes and times, in a fixed order and without owners, so that the same workspace gives the same bytes. " +
					"A checkout's token, credential helpers and files of credentials do not; links and special files are left out and named.",
			},
			exits: []exit{okExit, {exitUsage, "the flags or a place are wrong, or the workspace is too large; there is no snapshot"},
				{exitNoVerdict, "it could not be read or written"}, cancelledExit},
			env: []entry{{"HOME", "the home whose credentials are looked for"}},
			examples: []example{
				{"untrusted-steps snapshot ../before.tar.gz", "the current folder"},
				{"untrusted-steps snapshot --workspace . ../before.tar.gz", "a folder by its name"},
			},
		},
		{
			name: "restore", does: "put a snapshot back; a dangerous one is refused", run: (*app).restore, also: []string{"unpack", "extract"},
			takes: snapshotFile, flags: []flagDef{flagWorkspace.saying("The folder to put it into.")},
			about: []string{
				"An archive that names an absolute path, .., a link or a device, is larger than 1 GiB unpacked, or would go through a link that stands " +
					"in the workspace is refused, and nothing is changed. Files are replaced, none is removed.",
			},
			exits: []exit{okExit, {exitUsage, "the flags are wrong, or the archive is refused and its entry named; nothing was changed"},
				{exitNoVerdict, "it could not be read or written"}, cancelledExit},
			examples: []example{
				{"untrusted-steps restore ../before.tar.gz", "into the current folder"},
				{"untrusted-steps restore --workspace . ../before.tar.gz", "into a folder by its name"},
			},
		},
		{
			name: "pin", does: "print a steps file with the digests of its images", run: (*app).pin, also: []string{"lock", "freeze"},
			takes: stepsFile, flags: []flagDef{flagWorkspace.saying("The folder the steps would work in, against which the file is checked."), flagPolicy},
			about: []string{
				"A tag can be moved by whoever owns it; a digest cannot. Each image of a registry that has none is asked for, once, and its " +
					"digest is written behind it. Nothing else of the file is changed: comments, quotes and ends of lines stay. No image is fetched.",
				"The policy is that of the file as it is; one with imageDigests: true is for the file that comes out.",
			},
			exits: []exit{okExit, {exitFail, "an image is written in a way that no digest can be put behind it; the rest was printed"}, usageExit, {exitRefused, "a registry does not have an image, or could not be asked; nothing was printed"}, unwrittenExit, cancelledExit},
			env:   []entry{imageEnv, hiddenEnv, presetEnv, colourEnv, {"PATH", "where credential helpers of docker login are looked for"}, {"GITHUB_ACTIONS", "true: a file with lines that a runner would act on is not printed"}},
			examples: []example{
				{"untrusted-steps pin steps.yml >../pinned.yml", "into a file; nothing is written if an image cannot be asked for"},
				{"untrusted-steps pin - <steps.yml", "from standard input"},
			},
		},
		{
			name: "doctor", does: "say what this machine can enforce, and what helps", run: (*app).doctor, also: []string{"diagnose", "probe", "status"},
			flags: []flagDef{
				flagJSON.saying("The findings as JSON."), flagEngine.saying("The engine whose box has to run. With auto any will do."),
				flagWorkspace.saying("The workspace whose disk is looked at."), flagKernSHA256, flagRunscSHA256,
				flagHostSetup.saying("Look at this machine with what a run with that flag would add to it, which is taken away at the end."),
			},
			about: []string{
				"Everything that a run needs of the host is tried, not read from settings: namespaces, overlay, filter, control groups, folders and disk; " +
					"then a full box of each engine is built, and its controls are proved, whatever is remembered of an earlier run. Each finding says what it costs, what to type, and how to see that it is mended.",
			},
			exits:    []exit{{exitPass, "a full box ran, with caps"}, usageExit, {exitRefused, "none did"}, unwrittenExit, cancelledExit},
			files:    []entry{kernCache, runscCache},
			env:      []entry{kernEnv, runscEnv, cacheEnv, {"XDG_RUNTIME_DIR", "where the systemd user manager is asked for a control group"}, {"TMPDIR, HOME, USER", "looked at"}},
			examples: []example{{"untrusted-steps doctor", "what is fine, and what to type where something is not"}, {"untrusted-steps doctor --json --engine native", "for a program, and one engine only"}},
		},
		{
			name: "prepare", does: "add to this host what boxes need and it lacks", run: (*app).prepare, also: []string{"setup", "init"},
			flags: []flagDef{
				flagHostSetup.saying("auto adds the least that is missing; sysctl lets all programs use user namespaces where AppArmor forbids it.").or(string(host.SetupAuto)),
				{name: "undo", does: "Take away what was added for this account.", set: yes(func(o *options) *bool { return &o.undo })},
				{name: "dry-run", does: "Print the commands, and run none.", set: yes(func(o *options) *bool { return &o.dry })},
			},
			about: []string{
				"For runs that may not do it themselves: run --host-setup auto does the same for one run, and undoes it. What is added is a control group that " +
					"belongs to this account, and, where AppArmor restricts user namespaces, a profile for this program alone in a place that only root can write. " +
					"Small fixed commands go through sudo -n; neither this program nor an engine is ever run as root.",
			},
			exits:    []exit{{exitPass, "nothing is missing any more"}, usageExit, {exitRefused, "something still is; what and why is on standard error"}, unwrittenExit, cancelledExit},
			env:      []entry{{"XDG_RUNTIME_DIR", "where the systemd user manager is asked for a control group"}},
			examples: []example{{"untrusted-steps prepare --dry-run", "what would be typed"}, {"untrusted-steps prepare --undo", "take it all away again"}},
		},
		{
			name: "kern", does: "fetch the kern binary, or say which one is used", run: (*app).kern,
			takes: &operands{name: "install|path", kind: aWord, words: func() []string { return []string{"install", "path"} }},
			flags: []flagDef{flagKernSHA256.saying("Accept the kern binary that has this SHA-256. For path only.")},
			about: []string{
				"install asks pip for the package kern-sandbox, and GitHub for the release where that fails, and installs nothing but bytes of the " +
					"SHA-256 that this version knows. It is verified again before each use. path prints the binary that a run would take.",
			},
			exits: []exit{okExit, usageExit, {exitRefused, "there is none, or none that can be trusted"}, unwrittenExit},
			files: []entry{kernCache}, env: []entry{kernEnv, cacheEnv, {"PIP_*, HTTPS_PROXY", "how pip and we reach the network"}},
			examples: []example{
				{"untrusted-steps kern install", "once on a machine"},
				{"untrusted-steps kern path", "which one a run would take"},
			},
		},
		{
			name: "runsc", does: "build gvisor's runsc, or say which one is used", run: (*app).runsc, also: []string{"gvisor"},
			takes: &operands{name: "build|path", kind: aWord, words: func() []string { return []string{"build", "path"} }},
			flags: []flagDef{flagRunscSHA256.saying("Accept the runsc binary that has this SHA-256. For path only.")},
			about: []string{
				"build has the Go of this machine build runsc from gVisor's module, and keeps it if it comes out with the SHA-256 that this version knows, as it does " +
					"wherever it is built. It is verified again before each use. path prints the binary that a run would take.",
			},
			exits: []exit{okExit, usageExit, {exitRefused, "there is none, or none that can be trusted"}, unwrittenExit},
			files: []entry{runscCache}, env: []entry{runscEnv, cacheEnv, {"GOPROXY, GOMODCACHE, GOCACHE", "how Go reaches the network, and what it keeps"}},
			examples: []example{
				{"untrusted-steps runsc build", "once on a machine, some minutes"},
				{"untrusted-steps runsc path", "which one a run would take"},
			},
		},
		{
			name: "completion", does: "print the script by which a shell completes", run: (*app).completion, also: []string{"autocomplete"},
			takes: &operands{name: "bash|zsh|fish", kind: aWord, words: func() []string { return shells }},
			about: []string{
				"Verbs, flags, what flags can be, files, and for --only the ids of the steps file that the line names. The script asks the " +
					toolName + " of PATH, which runs nothing and reads nothing but that file.",
				"bash and zsh (after compinit) can source it; for fish, and for zsh in a folder of fpath, it is a file.",
			},
			exits: []exit{okExit, usageExit, unwrittenExit},
			files: []entry{{"~/.bashrc, ~/.zshrc", "where the first example can stand"}},
			examples: []example{
				{"source <(untrusted-steps completion bash)", "in bash, and with its name in zsh"},
				{"untrusted-steps completion zsh >~/.zfunc/_untrusted-steps", "in zsh, with ~/.zfunc in fpath"},
				{"untrusted-steps completion fish >~/.config/fish/conf.d/untrusted-steps.fish", "in fish"},
			},
		},
		{
			name: "mcp", does: "give an agent tools that run in boxes (MCP)", run: (*app).mcp, also: []string{"serve", "server", "agent"},
			flags: []flagDef{
				flagWorkspace.saying("The folder that tools work in. They see it as /workspace, and what a call that succeeded wrote there lasts."),
				flagDefaults, flagPolicy.saying("Refuse what goes beyond this file: the defaults, and what a tool is asked for. It must not lie in the workspace."),
				flagEngine, flagKernSHA256, flagRunscSHA256, flagFreshProof,
			},
			about: []string{
				"Speaks the Model Context Protocol on standard input and output, and says what it does on standard error. The tools are run_code, run, write_file, " +
					"read_file and list_files, and bash, read, write, edit, ls, grep and find. Each call of one runs in a fresh box, reading and writing too.",
				"What a box may do is said by --defaults, in the words of a steps file:",
				"  defaults:\n    image: host\n    memoryMb: 1024\n    egressAllow: [api.example.com]",
				"Controls are proved on this host before the first call, as by run.",
			},
			exits: []exit{
				{exitPass, "the client closed the input"}, {exitUsage, "the flags or files are wrong; nothing ran"},
				{exitRefused, "refused: this host cannot enforce what is asked; the cause and the command that helps are on standard error"},
				{exitNoVerdict, "the protocol broke off, or what calls had left could not be removed"}, cancelledExit,
			},
			files: []entry{proofsKept, kernCache, runscCache, imageCache},
			env:   []entry{kernEnv, runscEnv, hiddenEnv, imageEnv, {"TMPDIR", "where calls keep their output until it is told"}, passedEnv, presetEnv},
			examples: []example{
				{"untrusted-steps mcp --workspace ~/project --defaults ~/agent.yml", "what an agent is told to start"},
				{"untrusted-steps mcp --policy ../policy.yml --engine native", "within a policy, by one engine"},
			},
		},
		{name: "complete", hidden: true, run: (*app).complete},
		{
			name: "version", does: "print the version", run: (*app).version,
			exits: []exit{okExit, usageExit, unwrittenExit}, examples: []example{{"untrusted-steps version", "it is in every report, too"}},
		},
		{
			name: "help", does: "print this, or all there is to say of a verb", run: (*app).help, also: []string{"man", "usage"},
			takes: &operands{name: "VERB", kind: aWord, words: verbNames, optional: true},
			about: []string{"VERB --help prints the same."},
			exits: []exit{okExit, usageExit, unwrittenExit}, examples: []example{{"untrusted-steps help run", "flags, exit status, files, variables, examples"}},
		},
	}
}

// verbOf finds a verb; nil if there is none of that name.
func verbOf(name string) *verb {
	for _, v := range verbs() {
		if v.name == name {
			return v
		}
	}
	return nil
}

// verbNames are those for people.
func verbNames() (names []string) {
	for _, v := range verbs() {
		if !v.hidden {
			names = append(names, v.name)
		}
	}
	return names
}

// unknownVerb says that there is no such verb, and which was probably meant.
func (a *app) unknownVerb(name string) int {
	const next = listHelp
	meant := didYouMean(name, verbNames(), "")
	for _, v := range verbs() {
		for _, also := range v.also {
			if also == name {
				meant = "; did you mean " + v.name + "?"
			}
		}
	}
	if meant == "" {
		meant = "; the verbs are " + strings.Join(verbNames(), ", ")
	}
	return a.next(a.wrong("%q is no verb%s", name, meant), next)
}

// synopsis is how a verb is written.
func (v *verb) synopsis() string {
	s := v.name
	for _, f := range v.flags {
		if f.required {
			s += fmt.Sprintf(" --%s %s", f.name, f.arg)
		}
	}
	if t := v.takes; t != nil {
		word := t.name
		if t.many {
			word += "..."
		}
		if t.optional {
			word = "[" + word + "]"
		}
		s += " " + word
	}
	return s
}

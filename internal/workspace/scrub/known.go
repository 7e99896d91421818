package scrub

import "regexp"

// What a name says about a file, whatever folder it lies in. A file that is two
// things is the later of them.
const (
	kindNone   = iota
	kindNote   // the project's own data; said, and left
	kindLog    // text of git's own that may hold an address with a password
	kindGit    // a git configuration
	kindNpm    // .npmrc
	kindYarn   // .yarnrc.yml
	kindNetrc  // .netrc and its like: hidden if it has a password
	kindDocker // hidden if it has credentials
	kindHide   // nothing but credentials
)

// named gives the kind of a file by its name. Folders called .docker make their
// config.json one of Docker's.
func named(name, folder string) int {
	switch name {
	case ".gitconfig":
		return kindGit
	case ".git-credentials", ".pypirc", ".dockercfg":
		return kindHide
	case ".npmrc":
		return kindNpm
	case ".yarnrc.yml":
		return kindYarn
	case ".netrc", "_netrc", "pip.conf", "auth.json", "nuget.config", "NuGet.config", "NuGet.Config", ".my.cnf", ".s3cfg", ".boto", ".terraformrc":
		return kindNetrc
	case "hgrc":
		if folder == ".hg" {
			return kindNetrc
		}
	case ".env":
		return kindNote
	case "config.json":
		if folder == ".docker" {
			return kindDocker
		}
	}
	// What actions/checkout writes for git to include.
	const prefix, suffix = "git-credentials-", ".config"
	if len(name) > len(prefix)+len(suffix) && name[:len(prefix)] == prefix && name[len(name)-len(suffix):] == suffix {
		return kindHide
	}
	return kindNone
}

// credentialed is what in a file of settings says that a credential follows: of
// .netrc, Mercurial, Composer, NuGet, MySQL, S3 and Terraform.
var credentialed = regexp.MustCompile(`(?i)passw|secret_?(access_)?key|"(http-basic|bearer|[a-z]+-oauth|[a-z]+-token)"|\btoken\s*=`)

// homeHidden are folders and files of a home that hold credentials, or the
// history of a shell in which somebody typed one.
var homeHidden = []string{
	".ssh", ".gnupg", ".password-store", ".local/share/keyrings", ".local/share/kwalletd", ".pki", ".vault-token", ".age", ".config/age", ".config/sops",
	".aws", ".azure", ".config/gcloud", ".boto", ".s3cfg", ".oci", ".aliyun", ".bluemix", ".config/doctl", ".config/hcloud", ".config/linode-cli", ".config/rclone", ".databrickscfg", ".snowsql", ".config/snowflake",
	".docker", ".dockercfg", ".config/containers/auth.json", ".kube", ".minikube", ".config/helm", ".config/argocd",
	".netrc", "_netrc", ".git-credentials", ".config/git/credentials", ".cache/git/credential", ".git-credential-cache", ".config/gh", ".config/hub", ".config/glab-cli", ".config/tea", ".config/github-copilot",
	".npmrc", ".yarnrc.yml", ".pypirc", ".pip/pip.conf", ".config/pip/pip.conf", ".config/pypoetry/auth.toml", ".condarc", ".cargo/credentials", ".cargo/credentials.toml",
	".m2/settings.xml", ".m2/settings-security.xml", ".gradle/gradle.properties", ".sbt/.credentials", ".ivy2/.credentials", ".gem/credentials", ".local/share/gem/credentials", ".bundle/config", ".composer/auth.json", ".config/composer/auth.json",
	".nuget/NuGet/NuGet.Config", ".config/NuGet/NuGet.Config", ".hex/hex.config", ".terraformrc", ".terraform.d", ".config/pulumi", ".pulumi", ".config/heroku", ".config/netlify", ".netlify", ".fly", ".config/vercel", ".local/share/com.vercel.cli", ".config/.wrangler", ".wrangler",
	".pgpass", ".my.cnf", ".mylogin.cnf", ".kaggle", ".huggingface", ".cache/huggingface/token", ".config/op", ".config/1Password", ".config/Bitwarden", ".config/Bitwarden CLI",
	".claude", ".claude.json", ".codex", ".gemini", ".config/anthropic", ".config/openai", ".config/google-chrome", ".config/chromium", ".mozilla", ".thunderbird",
	".bash_history", ".zsh_history", ".sh_history", ".history", ".local/share/fish/fish_history", ".python_history", ".node_repl_history", ".psql_history", ".mysql_history", ".sqlite_history", ".lesshst", ".viminfo",
	".credentials", ".secrets", ".rhosts", ".shosts", ".Xauthority", ".ICEauthority",
}

// homeGit are git configurations of a home: shown, without what is secret.
// .gitconfig is found by its name.
var homeGit = []string{".config/git/config"}

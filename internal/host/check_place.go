package host

import (
	"strings"

	"github.com/untrusted-steps/untrusted-steps/internal/container"
)

// Place is the kind of machine this is. It decides nothing but words: what is
// said to be wrong was seen to fail, and what helps against it differs.
type Place string

// The kinds.
const (
	Hosted     Place = "a GitHub-hosted virtual machine"
	Slim       Place = "ubuntu-slim of GitHub, a container"
	Job        Place = "a job container of GitHub Actions"
	ARCPod     Place = "a runner of a scale set on Kubernetes, steps in its own pod"
	ARCJobPod  Place = "a job pod of a scale set on Kubernetes"
	SelfHosted Place = "a self-hosted runner"
	Kubernetes Place = "a pod on Kubernetes"
	Container  Place = "a container"
	WSL        Place = "Windows Subsystem for Linux"
	Plain      Place = "a machine of its own"
)

// placeOf tells them apart by what a runner and a container leave lying about.
func placeOf(m Machine, workspace string) Place {
	actions := m.Getenv("GITHUB_ACTIONS") == "true"
	jobFolder := strings.HasPrefix(workspace, "/__w/") || strings.HasPrefix(m.Getenv("GITHUB_WORKSPACE"), "/__w/")
	pod := m.Getenv("KUBERNETES_PORT") != "" || m.Exists("/var/run/secrets/kubernetes.io")
	scaleSet := strings.Contains(m.Getenv("GITHUB_ACTIONS_RUNNER_EXTRA_USER_AGENT"), "actions-runner-controller/")
	switch {
	case actions && jobFolder && (pod || scaleSet):
		return ARCJobPod
	case actions && scaleSet, actions && pod:
		return ARCPod
	case actions && jobFolder:
		return Job
	case actions && m.Getenv("RUNNER_ENVIRONMENT") == "github-hosted":
		if !m.Exists("/run/systemd/system") {
			return Slim
		}
		return Hosted
	case pod:
		return Kubernetes
	case inContainer(m):
		return Container
	case actions:
		return SelfHosted
	case isWSL(m):
		return WSL
	}
	return Plain
}

func inContainer(m Machine) bool {
	if m.Exists("/.dockerenv") || m.Exists("/run/.containerenv") {
		return true
	}
	// containerd leaves no mark. But at the top of all control groups there is no
	// such file; here it is, so that this is the top of a namespace of them.
	own, err := m.Read("/proc/self/cgroup")
	return err == nil && strings.HasSuffix(own, "0::/\n") && m.Exists("/sys/fs/cgroup/cgroup.type")
}

func isWSL(m Machine) bool {
	release, err := m.Read("/proc/sys/kernel/osrelease")
	return err == nil && strings.Contains(strings.ToLower(release), "microsoft")
}

// contained says whether somebody outside decides what may be done here.
func (p Place) contained() bool {
	switch p {
	case Slim, Job, ARCPod, ARCJobPod, Kubernetes, Container:
		return true
	}
	return false
}

// outside is what whoever starts this container can do, so that boxes can be
// built in it. Nobody in it can.
func (x *examination) outside() []string {
	who := container.Who{Root: x.m.Root}
	switch x.place {
	case Slim:
		return []string{
			"# ubuntu-slim lets nobody build boxes; in the workflow take a virtual machine:",
			"runs-on: ubuntu-24.04",
		}
	case Job:
		return container.JobOptions(who)
	case ARCPod:
		return container.PodFix("# in the values of the scale set, under template.spec, for the container runner (Kubernetes 1.33 and newer):")
	case ARCJobPod:
		return container.PodFix("# in the file that ACTIONS_RUNNER_CONTAINER_HOOK_TEMPLATE of the runner names, for the container $job (Kubernetes 1.33 and newer):")
	case Kubernetes:
		return container.PodFix("# in the pod's spec, for the container that this runs in (Kubernetes 1.33 and newer):")
	case Container:
		return container.Fix(who, "untrusted-steps run FILE")
	}
	return []string{container.Hint(who)}
}

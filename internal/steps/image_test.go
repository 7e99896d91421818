package steps

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/untrusted-steps/untrusted-steps/internal/box"
	"github.com/untrusted-steps/untrusted-steps/internal/image"
)

const someDigest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestImagesOfAPlan(t *testing.T) {
	for _, tc := range []struct{ written, want string }{
		{"python:3.12-slim", "docker.io/library/python:3.12-slim"},
		{"python@" + someDigest, "docker.io/library/python@" + someDigest},
		{"localhost:5000/a/b", "localhost:5000/a/b:latest"},
		{"archive:/srv/a.tar", "archive:/srv/a.tar"},
		{"archive:a.tar", "archive:/work/a.tar"},
	} {
		opt := testOptions(t)
		opt.Dir = "/work"
		p, err := Load("steps.yml", []byte("steps: [{run: x, image: '"+tc.written+"'}, {run: x}]"), opt)
		if err != nil {
			t.Errorf("%s: %v", tc.written, err)
			continue
		}
		s := p.Steps[0]
		if s.Origin.String() != tc.want || s.Image != tc.written {
			t.Errorf("%s is %s", tc.written, s.Origin)
		}
		// Until it was fetched nobody can build it: least of all from the host.
		if s.Root.Kind != box.RootDir || s.Root.Dir != "" {
			t.Errorf("%s has the root %+v", tc.written, s.Root)
		}
		if !p.Steps[1].Origin.None() || p.Steps[1].Root.Kind != box.RootHost {
			t.Errorf("a step without an image has %+v", p.Steps[1].Root)
		}
	}
}

// A step may take back what defaults say.
func TestImageOfDefaults(t *testing.T) {
	p, err := Load("steps.yml", []byte("defaults: {image: 'python:3'}\nsteps: [{run: x}, {run: x, image: host}, {run: x, image: 'rootfs:/srv/r'}, {run: x, image: 'archive:/srv/a'}]"), testOptions(t))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range p.Steps {
		got = append(got, fmt.Sprintf("%v %d %s", s.Origin.None(), s.Root.Kind, s.Root.Dir))
	}
	if d := cmp.Diff([]string{"false 1 ", "true 0 ", "true 1 /srv/r", "false 1 "}, got); d != "" {
		t.Error(d)
	}
}

func TestPolicyOfImages(t *testing.T) {
	other := "sha256:" + strings.Repeat("f", 64)
	for _, tc := range []struct {
		policy, image string
		ok            bool
	}{
		{"images: [python]", "python:3.12", true}, {"images: [python]", "docker.io/library/python@" + someDigest, true}, {"images: [docker.io/python]", "python", true},
		{"images: [python]", "python2", false}, {"images: [python]", "evil/python", false}, {"images: [python]", "ghcr.io/library/python", false}, {"images: [python]", "host", false},
		{"images: ['python:3.12']", "python:3.12", true}, {"images: ['python:3.12']", "python:3.13", false}, {"images: ['python:3.12']", "python", false}, {"images: ['python:3.12']", "python:3.12@" + someDigest, false},
		{"images: ['python@" + someDigest + "']", "python@" + someDigest, true}, {"images: ['python@" + someDigest + "']", "python:any@" + someDigest, true},
		{"images: ['python@" + someDigest + "']", "python@" + other, false}, {"images: ['python@" + someDigest + "']", "evil/python@" + someDigest, false}, {"images: ['python@" + someDigest + "']", "python", false},
		{"images: ['ghcr.io/owner/**']", "ghcr.io/owner/a/b:c", true}, {"images: ['ghcr.io/owner/**']", "ghcr.io/ownerx/a", false}, {"images: ['ghcr.io/owner/**']", "evil.io/owner/a", false},
		{"images: ['ghcr.io/**']", "ghcr.io/any/a", true}, {"images: ['ghcr.io/**']", "ghcr.io.evil.example/any/a", false}, {"images: ['owner/**']", "owner/a", true}, {"images: ['owner/**']", "library/a", false},
		{"images: ['archive:/srv/a.tar']", "archive:/srv/a.tar", true}, {"images: ['archive:/srv']", "archive:/srv/a.tar", false}, {"images: ['rootfs:/srv/a.tar']", "archive:/srv/a.tar", false}, {"images: ['archive:/srv/r']", "rootfs:/srv/r", false},
		{"images: [host]", "python", false}, {"images: []", "python", false},
		{"imageDigests: true", "python@" + someDigest, true}, {"imageDigests: true", "python:3@" + someDigest, true}, {"imageDigests: true", "python:3", false}, {"imageDigests: true", "host", true},
		{"imageDigests: true", "archive:/srv/a.tar", true}, {"imageDigests: false", "python", true},
	} {
		opt := testOptions(t)
		p, err := LoadPolicy("policy.yml", []byte(tc.policy), opt)
		if err != nil {
			t.Errorf("%s: %v", tc.policy, err)
			continue
		}
		opt.Policy = p
		_, err = Load("steps.yml", []byte("steps: [{run: x, image: '"+tc.image+"'}]"), opt)
		if (err == nil) != tc.ok {
			t.Errorf("under %s the image %s: %v", tc.policy, tc.image, err)
		}
		if err != nil && !strings.Contains(err.Error(), "steps.yml:1:25: this image") {
			t.Errorf("under %s the image %s: %v", tc.policy, tc.image, err)
		}
	}
	for _, wrong := range []string{"images: ['/**']", "images: ['**']", "images: ['python/*']", "images: ['Python']", "images: ['archive:a.tar']", "images: ['py thon']", "imageDigests: 1"} {
		if _, err := LoadPolicy("policy.yml", []byte(wrong), testOptions(t)); err == nil {
			t.Errorf("%s is taken", wrong)
		}
	}
}

// imagesOf gives what a test says.
type imagesOf func(Origin) (*image.Image, error)

func (f imagesOf) Get(_ context.Context, o Origin) (*image.Image, error) { return f(o) }

func imagePlan(t *testing.T, images ...string) *Plan {
	t.Helper()
	var b strings.Builder
	b.WriteString("steps:\n")
	for _, i := range images {
		fmt.Fprintf(&b, "- {run: x, image: '%s', env: {STEP: s, BOTH: step}}\n", i)
	}
	p, err := Load("steps.yml", []byte(b.String()), testOptions(t))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestAnImageIsTheRootAndItsVariablesComeBelowTheSteps(t *testing.T) {
	p := imagePlan(t, "python:3", "python:3", "alpine", "host")
	var asked []string
	r := &Runner{BoxPath: []string{"/of/the/host"}, Getenv: func(string) (string, bool) { return "", false }, Images: imagesOf(func(o Origin) (*image.Image, error) {
		asked = append(asked, o.String())
		c := image.Config{Env: []string{"PATH=/image/bin", "IMAGE=i", "BOTH=image", "LANG=xx"}, User: "app", WorkingDir: "/srv", Entrypoint: []string{"/evil"}, Cmd: []string{"x"}}
		if o.Ref.Repository == "library/alpine" {
			c = image.Config{}
		}
		return &image.Image{Root: "/store/" + o.Ref.Repository, Digest: someDigest, Config: c}, nil
	})}
	if err := r.Fetch(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"docker.io/library/python:3", "docker.io/library/alpine:latest"}, asked); d != "" {
		t.Errorf("asked for (-want +got):\n%s", d)
	}
	b, err := r.Spec(p.Steps[0])
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(box.Root{Kind: box.RootDir, Dir: "/store/library/python", Name: "python:3"}, b.Root); d != "" {
		t.Error(d)
	}
	for _, want := range []string{"PATH=/image/bin", "IMAGE=i", "BOTH=step", "STEP=s", "LANG=xx", "HOME=" + box.HomeTarget} {
		if !slices.Contains(b.Env, want) {
			t.Errorf("the environment lacks %s: %q", want, b.Env)
		}
	}
	// N158: nothing else of the image's has an effect.
	if b.Workdir != box.WorkspaceTarget || slices.Contains(b.Argv, "/evil") || !slices.Equal(b.Argv, []string{"sh", "-e", box.StepDir + "/script.sh"}) {
		t.Errorf("the step runs %q in %s", b.Argv, b.Workdir)
	}
	if b, err = r.Spec(p.Steps[2]); err != nil || !slices.Contains(b.Env, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin") {
		t.Errorf("without a PATH of the image's: %q (%v)", b.Env, err)
	}
	if b, err = r.Spec(p.Steps[3]); err != nil || b.Root != (box.Root{}) || !slices.Contains(b.Env, "PATH=/of/the/host") {
		t.Errorf("image host: %+v (%v)", b.Root, err)
	}
	if r.digest(p.Steps[0]) != someDigest || r.digest(p.Steps[3]) != "" {
		t.Errorf("the digests are %q and %q", r.digest(p.Steps[0]), r.digest(p.Steps[3]))
	}
}

// WORKDIR of an image is where a step starts that asks for that, and no other. It is
// a text of the image's.
func TestTheWorkdirOfAnImage(t *testing.T) {
	for text, want := range map[string]string{"/srv/app": "/srv/app", "/srv//app/": "/srv/app", "": "/", "app": "/", "/a/../etc": "/", "/a\x00b": "/"} {
		p, err := Load("f.yml", []byte("defaults: {image: 'python:9'}\nsteps:\n- {run: x, workdir: image}\n- {run: x}\n"), testOptions(t))
		if err != nil {
			t.Fatal(err)
		}
		r := &Runner{Getenv: func(string) (string, bool) { return "", false }, Images: imagesOf(func(Origin) (*image.Image, error) {
			return &image.Image{Root: "/store/python", Digest: someDigest, Config: image.Config{WorkingDir: text}}, nil
		})}
		if err := r.Fetch(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		asks, err := r.Spec(p.Steps[0])
		if err != nil || asks.Workdir != want {
			t.Errorf("WORKDIR %q: the step starts in %q (%v), want %q", text, asks.Workdir, err, want)
		}
		if other, err := r.Spec(p.Steps[1]); err != nil || other.Workdir != box.WorkspaceTarget {
			t.Errorf("WORKDIR %q: a step that does not ask starts in %q (%v)", text, other.Workdir, err)
		}
	}
}

func TestAnImageThatCannotBeHad(t *testing.T) {
	p := imagePlan(t, "python:9", "alpine")
	tries := 0
	give := func(err error) *Runner {
		return &Runner{Getenv: func(string) (string, bool) { return "", false }, Images: imagesOf(func(o Origin) (*image.Image, error) {
			if o.Ref.Repository == "library/alpine" {
				return &image.Image{Root: "/store/alpine", Digest: someDigest}, nil
			}
			tries++
			return nil, err
		})}
	}
	for _, err := range []error{image.ErrNotFound, image.ErrNetwork, image.ErrRefused} {
		r := give(fmt.Errorf("%w: PWN\n::error::x", err))
		if err := r.Fetch(t.Context(), p); err != nil {
			t.Fatalf("the run is refused: %v", err)
		}
		why := r.Unbuildable(p.Steps[0])
		if !strings.HasPrefix(why, "image: python:9: ") || strings.Contains(why, "\n") {
			t.Errorf("%v: %q", err, why)
		}
		if b, err := r.Spec(p.Steps[0]); err != nil || b.Root.Kind != box.RootDir || b.Root.Dir != "" {
			t.Errorf("its root is %+v (%v)", b.Root, err)
		}
		if why := r.Unbuildable(p.Steps[1]); why != "" {
			t.Errorf("the other step: %s", why)
		}
		// A registry that did not answer is asked again where the step is tried
		// again; one that answered is not.
		tries = 0
		r.askAgain(t.Context(), p.Steps[0], &StepResult{})
		if want := map[bool]int{true: 1, false: 0}[err == image.ErrNetwork]; tries != want {
			t.Errorf("%v: asked again %d times, want %d", err, tries, want)
		}
	}
	if err := give(fmt.Errorf("write: %w", unix.ENOSPC)).Fetch(t.Context(), p); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a host without room: %v", err)
	}
	if why := (&Runner{}).Unbuildable(p.Steps[0]); why == "" {
		t.Error("an image that nobody asked for is built")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := give(image.ErrNetwork).Fetch(ctx, p); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestN158APlanShowsWhatOfAnImageIsNotUsed(t *testing.T) {
	p := imagePlan(t, "python:3", "alpine@"+someDigest, "busybox")
	p.ShowImages(func(o Origin) (*image.Image, error) {
		if o.Ref.Repository != "library/python" {
			return nil, image.ErrMissing
		}
		return &image.Image{Digest: someDigest, Config: image.Config{Env: []string{"LD_PRELOAD=/evil"}, User: "app\n::error::x", Entrypoint: []string{"/e"}}}, nil
	})
	var b strings.Builder
	if err := p.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"image      python:3 = docker.io/library/python:3\n             in the store: " + someDigest + "\n             sets LD_PRELOAD\n", `not used: "USER app\n`, `not used: ENTRYPOINT ["/e"]`, "alpine@" + someDigest, "not in the store yet",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the plan lacks %q:\n%s", want, b.String())
		}
	}
	sum, err := p.Sum()
	if err != nil {
		t.Fatal(err)
	}
	if plain, err := imagePlan(t, "python:3", "alpine@"+someDigest, "busybox").Sum(); err != nil || plain != sum {
		t.Errorf("what this machine's store knows makes another plan of it (%v)", err)
	}
}

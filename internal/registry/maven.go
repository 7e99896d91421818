package registry

import (
	"archive/zip"
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"strings"
)

type mavenSettings struct {
	Mirrors  []mavenMirror  `xml:"mirrors>mirror"`
	Profiles []mavenProject `xml:"profiles>profile"`
}

type mavenMirror struct {
	URL     string `xml:"url"`
	Of      string `xml:"mirrorOf"`
	Blocked bool   `xml:"blocked"`
}

type mavenProject struct {
	Repositories []mavenRepository `xml:"repositories>repository"`
	Plugins      []mavenRepository `xml:"pluginRepositories>pluginRepository"`
}

type mavenRepository struct {
	ID  string `xml:"id"`
	URL string `xml:"url"`
}

// maven reads the settings of the user and of the program, and the repository
// that is built into the program unless a mirror stands in for it.
func (r Reader) maven(f *found) error {
	f.look("the program mvn")
	home := r.mavenHome()
	var mirrors []mavenMirror
	var where []string // of mirrors
	type known struct {
		mavenRepository
		from string
	}
	var repositories []known
	for _, path := range []string{r.inHome(".m2/settings.xml"), below(home, "conf/settings.xml")} {
		text, err := r.read(f, path)
		if err != nil {
			return err
		}
		if text == "" {
			continue
		}
		var s mavenSettings
		if err := xml.Unmarshal([]byte(text), &s); err != nil {
			return fmt.Errorf("%s is not the XML of settings", f.show(path))
		}
		for _, m := range s.Mirrors {
			mirrors, where = append(mirrors, m), append(where, "maven's mirror in "+f.show(path))
		}
		for _, p := range s.Profiles {
			for _, repo := range append(p.Repositories, p.Plugins...) {
				repositories = append(repositories, known{repo, "maven's repository in " + f.show(path)})
			}
		}
	}
	built, err := r.superPOM(f, home)
	for _, repo := range built {
		repositories = append(repositories, known{repo, "maven's repository, as maven has it built in"})
	}
	used := map[int]bool{}
	for _, repo := range repositories {
		i := mirrorOf(mirrors, repo.mavenRepository)
		switch {
		case i < 0:
			if err := f.add(r.mavenText(repo.URL), repo.from); err != nil {
				return err
			}
		case mirrors[i].Blocked, used[i]:
		default:
			used[i] = true
			if err := f.add(r.mavenText(mirrors[i].URL), where[i]); err != nil {
				return err
			}
		}
	}
	if err != nil && mirrorOf(mirrors, mavenRepository{ID: "central", URL: "https://central.invalid"}) < 0 {
		return err
	}
	// Without the program, what a mirror of everything stands in for is known
	// all the same.
	for i, m := range mirrors {
		if err != nil && !used[i] && !m.Blocked {
			if err := f.add(r.mavenText(m.URL), where[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// mavenText puts in the variables that settings may name.
func (r Reader) mavenText(s string) string {
	return expandVars(strings.TrimSpace(s), func(name string) string {
		if v, ok := strings.CutPrefix(name, "env."); ok {
			return r.env(v)
		}
		return ""
	})
}

// mavenHome is the folder of the program.
func (r Reader) mavenHome() string {
	for _, name := range []string{"MAVEN_HOME", "M2_HOME"} {
		if v := r.env(name); filepath.IsAbs(v) {
			return v
		}
	}
	if mvn, err := r.find("mvn"); err == nil {
		return filepath.Dir(filepath.Dir(mvn))
	}
	return ""
}

func below(dir, rel string) string {
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, rel)
}

// mirrorOf gives the first mirror that stands in for a repository; -1 if none
// does.
func mirrorOf(mirrors []mavenMirror, repo mavenRepository) int {
	u, err := url.Parse(strings.TrimSpace(repo.URL))
	local := err == nil && (u.Scheme == "file" || u.Hostname() == "localhost" || u.Hostname() == "127.0.0.1")
	plain := err == nil && u.Scheme == "http"
	for i, m := range mirrors {
		covers, excluded := false, false
		for pattern := range strings.SplitSeq(m.Of, ",") {
			switch strings.TrimSpace(pattern) {
			case "!" + repo.ID:
				excluded = true
			case repo.ID, "*":
				covers = true
			case "external:*":
				covers = covers || !local
			case "external:http:*":
				covers = covers || !local && plain
			}
		}
		if covers && !excluded {
			return i
		}
	}
	return -1
}

const (
	superPOMName = "org/apache/maven/model/pom-4.0.0.xml"
	maxPOM       = 1 << 20
)

// superPOM reads the project that every project inherits from, out of the
// program's own archive.
func (r Reader) superPOM(f *found, home string) ([]mavenRepository, error) {
	if home == "" || r.List == nil {
		return nil, errors.New("maven is not installed")
	}
	lib := filepath.Join(home, "lib")
	names, err := r.List(lib)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", lib, err)
	}
	for _, n := range names {
		if !strings.HasPrefix(n, "maven-model-builder-") || filepath.Ext(n) != ".jar" {
			continue
		}
		jar, err := r.read(f, filepath.Join(lib, n))
		if err != nil {
			return nil, err
		}
		z, err := zip.NewReader(strings.NewReader(jar), int64(len(jar)))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", n, err)
		}
		file, err := z.Open(superPOMName)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", n, err)
		}
		defer file.Close()
		b, err := io.ReadAll(io.LimitReader(file, maxPOM))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", n, err)
		}
		var p mavenProject
		if err := xml.NewDecoder(bytes.NewReader(b)).Decode(&p); err != nil {
			return nil, fmt.Errorf("%s: %w", n, err)
		}
		return append(p.Repositories, p.Plugins...), nil
	}
	return nil, fmt.Errorf("%s has no maven-model-builder", lib)
}

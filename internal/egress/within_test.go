package egress

import "testing"

func TestARuleIsWithinACeilingByWhatItPermits(t *testing.T) {
	entry := func(t *testing.T, to string) []Rule {
		t.Helper()
		e := Entry{To: to, Force: true}
		if len(to) > 0 && to[0] == '~' { // marked private
			e = Entry{To: to[1:], Private: true, Force: true}
		}
		rules, err := ParseEntry(e)
		if err != nil {
			t.Fatal(err)
		}
		return rules
	}
	for sentence, tc := range map[string]struct {
		rule    string
		ceiling []string
		want    bool
	}{
		"the same name":                                   {"a.example.com", []string{"a.example.com"}, true},
		"the same name in other letters":                  {"A.Example.com.", []string{"a.example.com"}, true},
		"another name":                                    {"b.example.com", []string{"a.example.com"}, false},
		"an empty ceiling":                                {"a.example.com", nil, false},
		"a name below a star":                             {"a.example.com", []string{"*.example.com"}, true},
		"a name two labels below a star":                  {"b.a.example.com", []string{"*.example.com"}, false},
		"a name two labels below two stars":               {"b.a.example.com", []string{"**.example.com"}, true},
		"the bare name of a star":                         {"example.com", []string{"*.example.com"}, false},
		"the bare name of two stars":                      {"example.com", []string{"**.example.com"}, false},
		"a name that only ends in the same letters":       {"evilexample.com", []string{"**.example.com"}, false},
		"a star under the same star":                      {"*.example.com", []string{"*.example.com"}, true},
		"a star under two stars":                          {"*.example.com", []string{"**.example.com"}, true},
		"a deeper star under two stars":                   {"*.a.example.com", []string{"**.example.com"}, true},
		"two stars under one":                             {"**.example.com", []string{"*.example.com"}, false},
		"a deeper star under one star":                    {"*.a.example.com", []string{"*.example.com"}, false},
		"a star under a name":                             {"*.example.com", []string{"example.com"}, false},
		"a star under one that ends in the same letters":  {"*.evilexample.com", []string{"**.example.com"}, false},
		"every name under two stars":                      {"*", []string{"**.example.com"}, false},
		"every name under every name":                     {"*", []string{"*"}, true},
		"a name under every name":                         {"a.example.com", []string{"*"}, true},
		"a port of the two that no port means":            {"a.example.com:443", []string{"a.example.com"}, true},
		"both ports under one":                            {"a.example.com", []string{"a.example.com:443"}, false},
		"both ports under two rules for one each":         {"a.example.com", []string{"a.example.com:443", "*.example.com:80"}, true},
		"another port":                                    {"a.example.com:8443", []string{"a.example.com"}, false},
		"the same odd port":                               {"a.example.com:8443", []string{"a.example.com:8443"}, true},
		"any bytes under any bytes":                       {"tcp://a.example.com:22", []string{"tcp://a.example.com:22"}, true},
		"any bytes under HTTP":                            {"tcp://a.example.com:443", []string{"a.example.com"}, false},
		"any bytes under every name":                      {"tcp://a.example.com:443", []string{"*"}, false},
		"HTTP under any bytes on the same port":           {"a.example.com:443", []string{"tcp://a.example.com:443"}, true},
		"an address under itself":                         {"tcp://8.8.8.8:53", []string{"tcp://8.8.8.8:53"}, true},
		"an address under another":                        {"tcp://8.8.8.8:53", []string{"tcp://8.8.4.4:53"}, false},
		"an address under another port":                   {"tcp://8.8.8.8:53", []string{"tcp://8.8.8.8:853"}, false},
		"an address under every name":                     {"tcp://8.8.8.8:443", []string{"*"}, false},
		"private under private":                           {"~a.example.com", []string{"~a.example.com"}, true},
		"private under public":                            {"~a.example.com", []string{"a.example.com"}, false},
		"public under private":                            {"a.example.com", []string{"~a.example.com"}, true},
		"a loopback port under itself":                    {"~tcp://127.0.0.1:5432", []string{"~tcp://127.0.0.1:5432"}, true},
		"a preset under itself":                           {"preset:github", []string{"preset:github"}, true},
		"a host of a preset":                              {"github.com:443", []string{"preset:github"}, true},
		"a host of a preset on a port it does not name":   {"github.com", []string{"preset:github"}, false},
		"a preset under some of its hosts":                {"preset:github", []string{"github.com:443"}, false},
		"a preset under names that cover all of its host": {"preset:gitlab", []string{"*.com"}, true},
	} {
		t.Run(sentence, func(t *testing.T) {
			var ceiling []Rule
			for _, c := range tc.ceiling {
				ceiling = append(ceiling, entry(t, c)...)
			}
			if got := Within(entry(t, tc.rule), ceiling); got != tc.want {
				t.Errorf("%s within %v: %v, want %v", tc.rule, tc.ceiling, got, tc.want)
			}
		})
	}
	if Within([]Rule{{}}, []Rule{{depth: everyName}}) || Within(entry(t, "a.example.com"), []Rule{{}}) {
		t.Error("the zero rule is in something, or holds something")
	}
}

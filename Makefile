# Short names for commands that stand elsewhere; nothing is decided here.
.PHONY: build test lint screenshots

# The program, as the README says.
build:
	CGO_ENABLED=0 go build -o untrusted-steps ./cmd/action

# The tests, as the README and CI run them. Minutes.
test:
	go test ./...

# Format, vet, staticcheck, as CI runs them.
lint:
	scripts/lint

# The pictures in docs/img, of a real run. As root; the script says what it needs.
screenshots:
	scripts/screenshots

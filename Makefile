# Everything that a fresh Debian or Ubuntu needs is set up by the targets themselves; what is there already is left alone.
# Where each step lives: scripts/ (see docs/operations.md).

.DEFAULT_GOAL := help
.PHONY: help dev test test-agents bench soak images compose-up compose-down openapi fmt clean

help: ## Shows this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

dev: ## Sets everything up and runs kandev on :8080 in the foreground
	@scripts/dev.sh

test: ## Format, lints, and all tests against a real engine and a real PostgreSQL
	@scripts/test.sh

test-agents: ## Real third-party agents in containers, on a scripted model provider
	@scripts/test-agents.sh

bench: ## The rows of the benchmark, or BENCH="B1 B3", each against a baseline of the same run
	@scripts/bench.sh

soak: ## Rounds of kills of server, database and engine (ROUNDS=100, SEED=n)
	@scripts/soak.sh

images: ## All images, built without an image registry
	@scripts/images/all.sh

compose-up: ## The compose stack, from images built here
	@scripts/compose.sh up

compose-down: ## Stops the compose stack and keeps its data
	@scripts/compose.sh down

openapi: ## Regenerates docs/openapi.json
	@cargo run --quiet -p kandev -- openapi > target/openapi.json && mv target/openapi.json docs/openapi.json

fmt: ## Formats the code
	@cargo fmt --all

clean: ## Removes what was built here, the images too
	@scripts/clean.sh

# `make help` lists the targets. Python packages go into .venv only; Debian packages that are missing are installed when
# that is allowed (see scripts/setup.sh). BPF needs root: targets that attach use sudo when they aren't run as root.
PY := .venv/bin/python
OTELPROF := .venv/bin/otelprof
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup dev up demo test lint format bench bpf clean

help:  ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 10

setup:  ## install what is missing, make .venv, compile the BPF programs
	@scripts/setup.sh run

dev:
	@scripts/setup.sh dev

up: setup  ## agent, backend and the demo service; a live flame graph at http://127.0.0.1:4040 (ARGS="--duration 60s")
	@$(SUDO) $(OTELPROF) up --demo $(ARGS)

demo: setup  ## the demo service alone
	@$(PY) examples/inference_server/launch.py $(ARGS)

test: dev  ## all tests; the kernel ones need root (ARGS="tests/unit -k name")
	@$(SUDO) $(PY) -m pytest $(ARGS)

lint: dev  ## ruff, mypy --strict, clang-format
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@.venv/bin/clang-format --dry-run --Werror $$(git ls-files '*.c' '*.h')

format: dev  ## rewrite the sources as `make lint` wants them
	@$(PY) -m ruff check --fix -q . ; $(PY) -m ruff format -q .
	@.venv/bin/clang-format -i $$(git ls-files '*.c' '*.h')

bench: dev  ## measure: overhead, agent cost, ingest and queries, each against a peer or a floor in one run
	@$(SUDO) $(PY) -m benchmarks $(ARGS)

bpf: dev  ## compile the BPF programs again into the editable install
	@$(PY) -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps -e .

clean:  ## remove everything that was built
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

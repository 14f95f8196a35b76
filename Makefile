# `make help` lists the targets. Python packages go into .venv only; Debian packages that are missing are installed when
# that is allowed (see scripts/setup.sh). BPF needs root: targets that attach use sudo when they aren't run as root.
PY := .venv/bin/python
OTELPROF := .venv/bin/otelprof
NO_SUDO := echo "make: BPF needs root and there is no sudo here: run it as root" >&2; exit 1;
SUDO := $(if $(filter 0,$(shell id -u)),,$(if $(shell command -v sudo),sudo,$(NO_SUDO)))
C_SOURCES := '*.c' '*.h' '*.cpp'
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup dev up demo test roots matrix lint format bench bpf clean

help:  ## this list
	@echo 'make TARGET [ARGS="..."]   (a fresh machine: make up, then open http://127.0.0.1:4040)'
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  \1\t/' | expand -t 12

setup:  ## install what `make up` needs: Debian packages, .venv, compiled BPF programs (PYTHON=/path/to/python)
	@scripts/setup.sh run

dev:  ## that and what tests and lint need
	@scripts/setup.sh dev

up: setup  ## agent, backend and the demo service; a live flame graph at http://127.0.0.1:4040 (ARGS="--duration 60s")
	@$(SUDO) $(OTELPROF) up --demo $(ARGS)

demo: setup  ## the demo service alone
	@$(PY) examples/inference_server/launch.py $(ARGS)

test: dev  ## all tests; the kernel ones need root (ARGS="tests/unit -k name")
	@$(SUDO) $(PY) -m pytest $(ARGS)

roots:  ## interpreters that the machine hasn't, for the tests, from Debian's newer suites (ARGS="3.13t musl": own builds)
	@$(SUDO) scripts/roots.sh $(ARGS)

matrix: dev  ## every case on every interpreter of the machine, into docs/support.md (ARGS="tree jit": some cases)
	@$(SUDO) $(PY) -m tests.matrix $(ARGS)

lint: dev  ## ruff, mypy --strict, clang-format, bash -n
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@git ls-files -z $(C_SOURCES) | xargs -0 -r .venv/bin/clang-format --dry-run --Werror
	@git ls-files -z '*.sh' .ci | xargs -0 -r -n 1 bash -n

format: dev  ## rewrite the sources and the generated pages as `make lint` and the tests want them
	@$(PY) -m ruff check --fix -q . ; $(PY) -m ruff format -q .
	@$(PY) -m otelprof.reference
	@git ls-files -z $(C_SOURCES) | xargs -0 -r .venv/bin/clang-format -i

bench: dev  ## measure: overhead, agent cost, ingest and queries, each against a peer or a floor in one run
	@$(SUDO) $(PY) -m benchmarks $(ARGS)

bpf: dev  ## compile the BPF programs again into the editable install
	@$(PY) -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps -e .

clean:  ## remove everything that was built
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

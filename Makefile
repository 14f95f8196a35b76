# `make help` lists the targets. Everything happens in .venv; nothing is installed outside it but Debian packages.
VENV := .venv
PY := $(VENV)/bin/python

.DEFAULT_GOAL := help
.PHONY: help bpf

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort

bpf:  ## compile the BPF programs again into the editable install
	@$(PY) -m pip install -q --no-build-isolation --no-deps -e .

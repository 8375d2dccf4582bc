# Two commands: `make run` shows the product, `make test` proves it. Both install what is missing.
#
#   make run                        serve, send one request, print its receipt, stay up
#   make run ARGS=--once            the same, then exit; status 0 only if the receipt verifies
#   make run ARGS="--once --json"   the receipt as one JSON object on the last line of stdout
#   make test                       everything; PYTEST_ARGS="tests/billing -k holds" for a part
#   make check                      ruff, mypy, import-linter
#   make focus                      the FOCUS export, by the specification's own validator
#   make wheel-smoke                build the wheel and use it from an empty folder

SHELL := /bin/bash
.SILENT:
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || echo python3.11)
VENV := .venv
BIN := $(VENV)/bin
FOCUS_VENV := .venv-focus
# A pyenv shim may be there without the Python behind it.
PYTHON_312 ?= $(shell for each in python3.12 $(HOME)/.pyenv/versions/3.12.*/bin/python; do \
	"$$each" -c 'import sys; print(sys.executable)' 2>/dev/null && break; done)
TORCH := torch==2.13.0
MODEL := smollm2-135m-instruct
ARGS ?=
PYTEST_ARGS ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help run test check format wheel-smoke focus has-python-312 chromium clean

help:
	sed -n 's/^#   //p' Makefile

run: $(VENV)/.installed
	exec $(BIN)/dflash quickstart $(ARGS)

# Tests run several engines at once: threads that spin while they wait would take the processors
# from each other. It changes no result.
test: export OMP_WAIT_POLICY := PASSIVE
# Processes that take turns find their objects sooner in huge pages: a third less processor time in
# a virtual machine (docs/decisions/0015-huge-pages.md).
test check: export PYTHONMALLOC := malloc
test check: export GLIBC_TUNABLES := glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1
test: $(VENV)/.installed-dev chromium
	$(BIN)/dflash pull $(MODEL)
	$(BIN)/pytest -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel-smoke: $(VENV)/.installed-dev
	$(BIN)/python tests/wheel/smoke.py

has-python-312:
	[ -n "$(PYTHON_312)" ]

# The validator wants Python 3.12, and libraries older than ours.
focus: $(VENV)/.installed-dev $(FOCUS_VENV)/.installed
	$(BIN)/python tests/focus/validate.py $(FOCUS_VENV)/bin/focus-validator

$(FOCUS_VENV)/.installed:
	[ -n "$(PYTHON_312)" ] || { \
		echo "the FOCUS validator needs Python 3.12: make focus PYTHON_312=..." >&2; \
		exit 1; \
	}
	echo "== installing the FOCUS validator into $(FOCUS_VENV)" >&2
	$(PYTHON_312) -m venv $(FOCUS_VENV)
	$(FOCUS_VENV)/bin/pip install focus-validator==2.2.1 pyarrow==21.0.0 >&2
	touch $@

clean:
	rm -rf $(VENV) $(FOCUS_VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/.created:
	echo "== creating $(VENV) with $(PYTHON)" >&2
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' || { \
		echo "DFlash Gateway needs Python 3.11 or 3.12; say which: make run PYTHON=..." >&2; \
		exit 1; \
	}
	$(PYTHON) -m venv $(VENV)
	touch $@

# Torch goes first and by itself: without a GPU the CPU build is a fraction of the download. Where
# pip knows no CPU build, the ordinary one does the same work.
$(VENV)/.torch: | $(VENV)/.created
	if [ -e /proc/driver/nvidia/version ]; then \
		echo "== installing $(TORCH) (NVIDIA GPU found)" >&2; \
		$(BIN)/pip install "$(TORCH)" >&2; \
	else \
		echo "== installing $(TORCH), CPU build" >&2; \
		$(BIN)/pip install "$(TORCH)+cpu" >&2 || { \
			echo "== pip knows no separate CPU build: taking the ordinary, larger one" >&2; \
			$(BIN)/pip install "$(TORCH)" >&2; \
		}; \
	fi
	touch $@

$(VENV)/.installed: pyproject.toml | $(VENV)/.torch
	echo "== installing DFlash Gateway" >&2
	$(BIN)/pip install -e . >&2
	touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/.torch
	echo "== installing DFlash Gateway and what its tests need" >&2
	$(BIN)/pip install -e '.[dev]' >&2
	touch $(VENV)/.installed $@

chromium:
	command -v chromium chromium-browser google-chrome >/dev/null || { \
		[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null || { \
			echo "the browser tests need chromium: install it with your package manager" >&2; \
			exit 1; \
		}; \
		echo "== installing chromium for the browser tests" >&2; \
		apt-get update -q >&2; \
		DEBIAN_FRONTEND=noninteractive \
			apt-get install -y -q --no-install-recommends chromium >&2; \
	}

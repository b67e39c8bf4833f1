# Set-up and the jobs of this repository. Every target does its own set-up, in $(VENV).

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --disable-pip-version-check

# Most of what a test process does is to import vLLM.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test lint docs apply clean

demo: apply ## reload a tiny quantized GLM-5.x, audit it, print the table
	$(RUN) examples/reload_glm5.py

test: apply ## run every test that this machine can run
	OMP_NUM_THREADS=1 $(RUN) -m pytest -n $(WORKERS) --dist loadfile

lint: apply $(VENV)/.lint ## ruff, mypy, typos and the series' own checks
	PATH="$(abspath $(VENV))/bin:$$PATH" $(VENV)/bin/pre-commit run --all-files --show-diff-on-failure

docs: $(VENV)/.docs ## build the documentation into site/
	$(VENV)/bin/mkdocs build --strict

apply: $(VENV)/.wheel ## bring the installed vLLM to what the overlay says now
	$(RUN) -m tools.series apply

$(VENV)/.wheel: series.toml setup.py pyproject.toml requirements/test.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	"Python 3.11 or newer is needed; run make PYTHON=/path/to/it")'
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	VLLM_TARGET_DEVICE=cpu $(PIP) install . -r requirements/test.txt
	touch $@

$(VENV)/.lint: $(VENV)/.wheel requirements/lint.txt
	$(PIP) install -r requirements/lint.txt
	touch $@

$(VENV)/.docs: requirements/docs.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(PIP) install -r requirements/docs.txt
	touch $@

clean: ## remove the environment and all that was built
	rm -rf $(VENV) build dist site

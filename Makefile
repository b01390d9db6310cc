# Every target works on a fresh clone: the first one that needs it makes the virtual environment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SETTINGS ?=
# another Flower than the newest, such as 1.39, for the targets that say so
FLOWER ?=
OTHER := .venv-flower-$(FLOWER)
CUDA_TESTS := tests/strategies/test_contract.py tests/strategies/test_golden.py \
	tests/prototypes/test_mixture.py tests/prototypes/test_masks.py

.PHONY: demo deploy-demo docker-demo test integration cuda-check gpu-check ray-check soak tables mutants settings docs lint bench clean help

help:
	@echo "make demo    install what is needed, train eight different clients on real digits, and compare with no exchange"
	@echo "make deploy-demo  a SuperLink and three sites as real processes, with TLS and node keys; FLOWER=1.39 for gRPC"
	@echo "make docker-demo  the same in containers, over docker-compose.yml; it fails where no Docker engine runs (SKIP_WITHOUT_DOCKER=yes: skipped)"
	@echo "make test    install what is needed, then run the tests; the slowest are listed at the end"
	@echo "make integration  the same app over Flower's simulation, over a deployment and from the command line"
	@echo "make cuda-check  on a machine with a GPU: every method there, against the figures of a CPU"
	@echo "make gpu-check  in nine minutes on a GPU, without a network: every method's contract, and speed"
	@echo "make ray-check  runs and comparisons over two Ray nodes on this machine, one of which is killed (seven minutes)"
	@echo "make tables  ProtoNorm's and TinyProto's first tables on CIFAR-10 at full length (hours on a GPU); goes on where it was"
	@echo "make soak    fifty rounds of faults and kills over real processes (half an hour)"
	@echo "make mutants small wrongs in the code, one after the other, each of which its tests must notice (ten minutes)"
	@echo "make settings  bring the defaults in pyproject.toml and docs/settings.md up to date with the code"
	@echo "make docs    the pages of docs/ as a site to open from disk: docs/_build/index.html"
	@echo "make lint    ruff and mypy"
	@echo "make bench   the measurements of docs/scale.md, printed anew"

# Flower's children find their programs through PATH as well
export PATH := $(CURDIR)/$(BIN):$(PATH)

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
		{ echo "Python 3.11, 3.12 or 3.13 is needed, and $(PYTHON) is another: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

# beside .venv: another Flower with what it needs of its own, and all else from there
$(OTHER)/.ready: $(READY)
	$(BIN)/python -m venv $(OTHER)
	$(BIN)/python -c 'import sysconfig as s; place = s.get_path("purelib"); \
		own = place.replace("/$(VENV)/", "/$(OTHER)/"); \
		open(f"{own}/rest.pth", "w").write(f"import site; site.addsitedir({place!r})\n")'
	$(OTHER)/bin/python -m pip install --quiet 'flwr[simulation]==$(FLOWER).*'
	@touch $@

# the default; then what a federation is worth: private models and a public encoder's space without an exchange, and the
# default's pool with one. Two architectures keep the comparison within two minutes
demo: $(READY)
	$(BIN)/protosphere run --clients 8 -c 'max-samples=600 alpha=0.5 rounds=10' $(if $(SETTINGS),-c '$(SETTINGS)')
	$(BIN)/protosphere compare --methods local,frame,protonorm,protosphere --seeds 0,1,2 \
		--metric 'classifier selected,pool-local selected,pool selected' \
		-c 'clients=8 encoder="handcrafted" max-samples=600 alpha=0.5 models="tiny_perceptron,tiny_cnn" evaluate-every=4' \
		$(if $(SETTINGS),-c '$(SETTINGS)')

deploy-demo: $(if $(FLOWER),$(OTHER)/.ready,$(READY))
	$(if $(FLOWER),$(OTHER)/bin,$(BIN))/python -m tests.deployment $(if $(SETTINGS),'$(SETTINGS)')

docker-demo:
	@SETTINGS='$(SETTINGS)' FLOWER='$(FLOWER)' deploy/docker/demo.sh

# a file's tests stay together: they share what takes long to make. The longest files are first, or one worker would wait
# for the other at the end
LONG := $(addprefix tests/,strategies/test_contract.py serving/test_export.py comparison/test_text_run.py test_one_name.py)
TESTS = $(LONG) $(filter-out $(LONG),$(sort $(shell find tests -name 'test_*.py')))
test: $(READY)
	$(BIN)/python -m pytest $(TESTS) -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder --durations 30

# two files at a time, for most of them wait
LONGEST := $(addprefix tests/integration/test_,flwr_run.py deployment.py supernodes.py)
INTEGRATION = $(LONGEST) $(filter-out $(LONGEST),$(shell grep -rl --include='*.py' 'pytest.mark.integration' tests))
integration: $(READY)
	$(BIN)/python -m pytest $(INTEGRATION) -m 'integration and not soak' -n auto --maxprocesses 2 --dist loadfile \
		--no-loadscope-reorder --durations 10

# on a machine with an NVIDIA GPU: every method's contract and golden figures, which a CPU has made, in both precisions
cuda-check: $(READY)
	PROTOSPHERE_TEST_DEVICE=cuda $(BIN)/python -m pytest $(CUDA_TESTS)
	PROTOSPHERE_TEST_DEVICE=cuda PROTOSPHERE_TEST_PRECISION=bf16 $(BIN)/python -m pytest $(CUDA_TESTS)

# HTFLIB is a checkout of HtFLlib. It makes no virtual environment, for a machine with a GPU may have torch and no network
gpu-check:
	$(PYTHON) -m benchmarks.gpu_check $(if $(HTFLIB),--htflib '$(HTFLIB)') $(GPU_CHECK)

ray-check: $(READY)
	$(BIN)/python -m pytest -m ray -s -v tests/integration/test_ray.py

# a table is one comparison, which a next call resumes; its trials go seed by seed, so that whole rows are there early.
# DATA is a folder with CIFAR-10, where it cannot be fetched; SETTINGS='rounds=6 clients=4' makes all small, to try it out
TABLES ?= protonorm-table1 tinyproto-table1
SEEDS ?= 0,1,2
tables: $(READY)
	for table in $(TABLES); do \
		begun=$$(ls -d results/tables/*-compare-$$table 2> /dev/null | tail -n 1); \
		if [ -n "$$begun" ]; then $(BIN)/protosphere compare --resume "$$begun" || exit 1; \
		else $(BIN)/protosphere compare --preset $$table --datasets CIFAR-10 $(if $(DATA),--data cifar10=$(DATA)) \
			--yes --seeds $(SEEDS) $(if $(SETTINGS),-c '$(SETTINGS)') --results results/tables || exit 1; fi; \
	done

soak: $(READY)
	$(BIN)/python -m pytest -m soak -s tests/soak tests/integration/test_gpu_check.py tests/integration/test_supernodes.py

# every warning is an error; what it makes needs no server and is searched without a network
docs: $(READY)
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet docs docs/_build
	@echo "docs/_build/index.html"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

mutants: $(READY)
	$(BIN)/python -m tests.mutations

settings: $(READY)
	$(BIN)/python -m protosphere.cli.settings_tables

# beside HtFLlib it is `python -m benchmarks.against_htflib --htflib DIR`, with a checkout of it
bench: $(READY)
	for figure in start bare-loop many-clients; do $(BIN)/python -m benchmarks.costs $$figure || exit 1; done

clean:
	rm -rf $(VENV) .venv-flower-* docs/_build docs/jupyter_execute .pytest_cache .mypy_cache .ruff_cache

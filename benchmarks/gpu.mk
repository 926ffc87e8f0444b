# Commands behind the figures that need a GPU:  make -f benchmarks/gpu.mk grid-toollens   (-j 4: four at a time)
# A finished job leaves an empty file in runs/gpu and is not run again. Data sets are in data/ (docs/data.md). Jobs at the
# same time want NVIDIA's MPS (`nvidia-cuda-mps-control -d`) and 10 to 50 GB each; those of `timed` must run alone.
DONE := runs/gpu
EVAL := rewrite-eval configs/eval
ALIGN := rewrite-train align configs/align
TABLE := python benchmarks/masstool_table.py configs/index
CATALOGUES := toole bfcl mcpzero toolbench
SEEDS := 1 2

# $(call job,NAME,NAMES OF JOBS THAT COME FIRST,COMMAND)
define job_rule
JOBS += $(1)
$(DONE)/$(1): $(addprefix $(DONE)/,$(2)); @mkdir -p $(DONE)
	$(3)
	@touch $$@
endef
job = $(eval $(call job_rule,$(strip $(1)),$(2),$(strip $(3))))

# Models that do not come with a package, indexes, targets.
$(call job,qwen,,hf download Qwen/Qwen2.5-Coder-0.5B-Instruct)
$(call job,mpnet,,hf download sentence-transformers/all-mpnet-base-v2)
$(foreach config,$(basename $(notdir $(wildcard configs/index/*.yaml))),\
  $(call job,index-$(config),,rewrite-index build configs/index/$(config).yaml))
$(call job,targets-toollens,index-toollens,rewrite-train targets configs/targets/toollens.yaml)
$(call job,targets-any,index-toollens,rewrite-train targets configs/targets/toollens-any.yaml)
$(foreach name,toollens $(CATALOGUES),$(call job,pick-$(name),index-$(name),rewrite-train targets configs/targets/$(name)-pick.yaml))

# Time, with nothing else on the card.
$(call job,masstool-epoch,,python benchmarks/masstool.py --only-epoch --out $(DONE)/masstool-epoch.json)
$(call job,masstool-fast,,$(TABLE)/toollens-masstool.yaml --no-ablation --out $(DONE)/masstool-fast.json \
  --set retrievers.masstool.train.encoder.epochs=3 --set retrievers.masstool.train.epochs=8)
$(call job,toolgen-cost,,python benchmarks/generative.py --tools 224 --rounds 3 --device cuda)
$(call job,recorded-steps,,python benchmarks/recorded_steps.py --out $(DONE)/recorded-steps.json)
$(call job,sft-throughput,targets-toollens,python benchmarks/sft_throughput.py runs/toollens/targets --method full --batch 64 \
  --steps 40 --out $(DONE)/sft-throughput.json)

# MassTool.
$(foreach seed,0 $(SEEDS),$(call job,masstool-$(seed),,$(TABLE)/toollens-masstool.yaml --seeds $(seed) --no-ablation \
  --keep $(DONE)/encoder-$(seed) --out $(DONE)/masstool-$(seed).json))
$(foreach seed,0 $(SEEDS),$(call job,masstool-parts-$(seed),masstool-$(seed),$(TABLE)/toollens-masstool.yaml --seeds $(seed) \
  --out $(DONE)/masstool-parts-$(seed).json --set retrievers.masstool.model=$(DONE)/encoder-$(seed) \
  --set retrievers.masstool.train.encoder=null))
$(foreach name,toole toolbench,$(call job,masstool-$(name),,$(TABLE)/$(name)-masstool.yaml --no-ablation --out $(DONE)/masstool-$(name).json))
$(call job,masstool-mpnet,mpnet,$(TABLE)/toollens-masstool.yaml --no-ablation --out $(DONE)/masstool-mpnet.json \
  --set retrievers.masstool.model=sentence-transformers/all-mpnet-base-v2)
$(call job,masstool-life,,python benchmarks/masstool_life.py configs/index/toollens-masstool.yaml --tune --out $(DONE)/masstool-life.json)

# ToolGen, ToolWeaver, and tuned MiniLM by ToolBench's groups.
$(call job,eval-weaver-wide,index-toollens-weaver-wide index-toollens-toolgen-unmemorised,$(EVAL)/toollens-weaver-wide.yaml)
$(call job,weaver-newcomers,,python benchmarks/generative_newcomers.py --kind toolweaver --data data/toollens --text description \
  --weave 2 256 --epochs 12 4 --learning-rate 5e-4 --no-further)
comma := ,
$(call job,tuned-toolbench,index-toolbench-tuned,$(EVAL)/toolbench.yaml --set output=runs/toolbench/eval-tuned \
  --set index=runs/toolbench/tuned --set "systems={tuned: {retriever: dense}}" --set "metrics=[recall@3$$(comma) recall@5$$(comma) \
  ndcg@1$$(comma) ndcg@3$$(comma) ndcg@5$$(comma) comp@5$$(comma) ndcg_toolgen@1$$(comma) ndcg_toolgen@3$$(comma) ndcg_toolgen@5]")

# Rewriters of known tools: fine-tuning, then alignment with three seeds.
$(call job,sft-toollens,targets-toollens,rewrite-train sft configs/sft/toollens.yaml)
$(call job,sft-toollens-qwen,targets-toollens qwen,rewrite-train sft configs/sft/toollens-qwen.yaml)
$(call job,eval-toollens-qwen,sft-toollens sft-toollens-qwen,$(EVAL)/toollens-qwen.yaml)
$(call job,sft-any,targets-any,rewrite-train sft configs/sft/toollens-any.yaml)
$(foreach algo,dpo grpo bestofn,$(call job,$(algo)-toollens,sft-any targets-toollens,$(ALIGN)/toollens-$(algo).yaml))
$(foreach seed,$(SEEDS),\
  $(call job,dpo-toollens-$(seed),sft-any targets-toollens,$(ALIGN)/toollens-dpo.yaml --set training.seed=$(seed) \
    --set algo.samples.seed=$(seed) --set output=runs/toollens/dpo-$(seed))\
  $(call job,grpo-toollens-$(seed),sft-any,$(ALIGN)/toollens-grpo.yaml --set training.seed=$(seed) --set output=runs/toollens/grpo-$(seed))\
  $(call job,eval-toollens-seed-$(seed),eval-toollens-aligned dpo-toollens-$(seed) grpo-toollens-$(seed),$(EVAL)/toollens-aligned.yaml \
    --set output=runs/toollens/eval-aligned-$(seed) --set rewriters.dpo.path=runs/toollens/dpo-$(seed) \
    --set rewriters.grpo.path=runs/toollens/grpo-$(seed)))
$(call job,eval-toollens-aligned,sft-toollens dpo-toollens grpo-toollens bestofn-toollens,$(EVAL)/toollens-aligned.yaml)
$(call job,eval-toollens-seeds,$(addprefix eval-toollens-seed-,$(SEEDS)),true)
$(call job,eval-toollens-before,eval-toollens-aligned index-toollens-tuned index-toollens-masstool,\
  $(EVAL)/toollens-before.yaml && $(EVAL)/toollens-before-masstool.yaml)

# Rewriters of catalogues never seen. $(call align_job,NAME,CATALOGUE,CONFIG,FOLDER,--set FLAGS): align, then evaluate.
PICKS_toolbench := pick-toole pick-bfcl pick-mcpzero index-toollens
$(foreach name,toole bfcl mcpzero,$(eval PICKS_$(name) := pick-toollens $(addprefix pick-,$(filter-out $(name),$(CATALOGUES)))))
evaluate = $(EVAL)/$(1)-aligned.yaml --set rewriters.aligned.path=runs/without-$(2)/$(3) --set output=runs/without-$(2)/eval-$(3)
align_job = $(call job,$(1),without-$(2),$(ALIGN)/$(3).yaml --set output=runs/without-$(2)/$(4) $(5) && $(call evaluate,$(2),$(2),$(4))\
  $(if $(filter toolbench,$(2)),&& $(EVAL)/toollens-unseen-aligned.yaml --set rewriters.aligned.path=runs/without-toolbench/$(4) \
  --set output=runs/unseen-toollens/eval-$(4)))
$(foreach name,$(CATALOGUES),$(call job,without-$(name),qwen index-$(name) $(PICKS_$(name)),rewrite-train sft configs/sft/without-$(name).yaml \
  && $(EVAL)/$(name)-rewritten.yaml $(if $(filter toolbench,$(name)),&& $(EVAL)/toollens-unseen-rewritten.yaml))\
  $(call job,aligned-$(name),without-$(name),$(ALIGN)/without-$(name).yaml && $(EVAL)/$(name)-aligned.yaml \
  $(if $(filter toolbench,$(name)),&& $(EVAL)/toollens-unseen-aligned.yaml))\
  $(foreach seed,$(SEEDS),$(call align_job,aligned-$(name)-$(seed),$(name),without-$(name),grpo-$(seed),--set training.seed=$(seed))))
$(foreach name,mcpzero bfcl,$(call align_job,dpo-$(name),$(name),without-$(name)-dpo,dpo)\
  $(call align_job,long-$(name),$(name),without-$(name),long,--set queries=4096)\
  $(call align_job,fast-$(name),$(name),without-$(name),fast,--set training.learning_rate=1.5e-5)\
  $(foreach seed,$(SEEDS),$(call align_job,dpo-$(name)-$(seed),$(name),without-$(name)-dpo,dpo-$(seed),--set training.seed=$(seed) \
  --set algo.samples.seed=$(seed))))

# Every retriever behind every rewriter.
$(call job,grid-mcpzero,index-mcpzero-learned index-mcpzero-masstool dpo-mcpzero,$(EVAL)/mcpzero-grid.yaml)
$(call job,grid-bfcl,index-bfcl-learned index-bfcl-masstool aligned-bfcl-1,$(EVAL)/bfcl-grid.yaml \
  --set rewriters.aligned.path=runs/without-bfcl/grpo-1)
$(call job,grid-unseen,index-unseen-toollens-learned index-unseen-toollens-masstool aligned-toolbench,$(EVAL)/toollens-unseen-grid.yaml)
$(call job,grid-toole,index-toole-learned index-toole-masstool aligned-toole,$(EVAL)/toole-grid.yaml)
$(call job,grid-toollens,$(addprefix index-toollens,-tuned -masstool -toolgen -weaver-wide) index-toollens sft-toollens dpo-toollens qwen,\
  $(EVAL)/toollens-grid.yaml)
$(call job,grid-toolbench,$(addprefix index-toolbench-,tuned masstool toolgen weaver) aligned-toolbench,$(EVAL)/toolbench-grid.yaml)

.PHONY: $(JOBS) list
.DEFAULT_GOAL := list
list:  ; @printf '%s\n' $(sort $(JOBS))
$(JOBS): %: $(DONE)/%

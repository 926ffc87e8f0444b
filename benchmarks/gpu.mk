# Commands behind the figures that need a GPU:  make -f benchmarks/gpu.mk grid-toollens   (-j 4: four at a time)
# A finished job leaves an empty file in runs/gpu and is not run again. Data sets are in data/ (docs/data.md). Jobs at the
# same time want NVIDIA's MPS (`nvidia-cuda-mps-control -d`) and 10 to 50 GB each; those of `timed` must run alone.
DONE := runs/gpu
EVAL := rewrite-eval configs/eval
ALIGN := rewrite-train align configs/align
TABLE := python benchmarks/masstool_table.py configs/index
CATALOGUES := toole bfcl mcpzero toolbench
SEEDS := 1 2

# $(call job,NAME,NAMES OF ALL_JOBS THAT COME FIRST,COMMAND)
define job_rule
ALL_JOBS += $(1)
$(DONE)/$(1): $(addprefix $(DONE)/,$(2)); @mkdir -p $(DONE)
	$(3)
	@touch $$@
endef
job = $(eval $(call job_rule,$(strip $(1)),$(2),$(strip $(3))))

# Models that do not come with a package, indexes, targets.
$(call job,qwen,,hf download Qwen/Qwen2.5-Coder-0.5B-Instruct)
$(call job,mpnet,,hf download sentence-transformers/all-mpnet-base-v2)
$(foreach config,$(filter-out untrained tuned masstool learned needs %-0.5b,$(basename $(notdir $(wildcard configs/index/*.yaml)))),\
  $(call job,index-$(config),,rewrite-index build configs/index/$(config).yaml))
TEXT_toollens := --set text=description
build = rewrite-index build configs/index/$(1).yaml --set dataset=$(2) $(TEXT_$(2))
$(foreach name,toollens $(CATALOGUES),$(call job,index-$(name),,$(call build,untrained,$(name)))\
  $(call job,index-$(name)-tuned,,$(call build,tuned,$(name))))
$(foreach name,$(CATALOGUES),$(call job,index-$(name)-masstool,,$(call build,masstool,$(name))))
$(foreach name,bfcl mcpzero,$(call job,index-$(name)-learned,,$(call build,learned,$(name))))
$(call job,index-unseen-toollens-masstool,,$(call build,masstool,toollens) --set index=runs/toollens/masstool-unseen \
  --set retrievers.masstool.train.protocol=unseen-tools)
WEAVER := retrievers.toolweaver
$(call job,index-toollens-weaver-wide,,rewrite-index build configs/index/toollens-weaver.yaml --set index=runs/toollens/weaver-wide \
  --set $(WEAVER).quantiser.levels=2 --set $(WEAVER).quantiser.codebook_size=256 --set $(WEAVER).beams=64 --set $(WEAVER).train.memorise.epochs=0)
$(call job,index-toollens-toolgen-unmemorised,,rewrite-index build configs/index/toollens-toolgen.yaml \
  --set index=runs/toollens/toolgen-unmemorised --set retrievers.toolgen.train.memorise.epochs=0)
$(call job,targets-toollens,index-toollens,rewrite-train targets configs/targets/toollens.yaml)
$(call job,targets-any,index-toollens,rewrite-train targets configs/targets/toollens.yaml --set phrasing_choice=any --set draws=4 \
  --set output=runs/toollens/any)
$(foreach name,toollens $(CATALOGUES),$(call job,pick-$(name),index-$(name),\
  rewrite-train targets configs/targets/pick.yaml --set dataset=$(name)))

# The encoder for all catalogues: left-out groups choose its blend.
ENCODER := rewrite-train encoder configs/encoder/tools.yaml
GROUPS := assistants functions tasks shells languages
$(foreach group,$(GROUPS),$(call job,encoder-without-$(group),,$(ENCODER) --set leave_out=$(group)))
$(call job,encoder-tools,$(addprefix encoder-without-,$(GROUPS)),$(ENCODER) --set blend=null)
$(call job,gte,,hf download thenlper/gte-small)
$(call job,encoder-mpnet,mpnet,rewrite-train encoder configs/encoder/tools-mpnet.yaml)
$(call job,encoder-gte,gte,$(ENCODER) --set base=thenlper/gte-small --set output=runs/encoder/tools-gte)
$(foreach seed,$(SEEDS),$(call job,encoder-tools-$(seed),,$(ENCODER) --set seed=$(seed) --set output=runs/encoder/tools-$(seed)))
$(call job,encoder-forms,encoder-tools,python benchmarks/encoder_forms.py runs/encoder/tools/final $(DONE)/encoder-forms)

# Rerankers: groups left out choose depth and weight.
$(foreach size,0.5b 1.5b,$(call job,qwen-$(size),,hf download Qwen/Qwen2.5-Coder-$(subst b,B,$(size))-Instruct)\
  $(call job,rerank-lm-$(size)-without,qwen-$(size),rewrite-train rerank configs/rerank/lm-$(size).yaml --leave-one-out)\
  $(call job,rerank-lm-$(size),rerank-lm-$(size)-without,rewrite-train rerank configs/rerank/lm-$(size).yaml))
RERANK := runs/rerank/lm-1.5b
$(foreach seed,$(SEEDS),$(call job,rerank-lm-1.5b-$(seed),rerank-lm-1.5b-without,mkdir -p $(RERANK)-$(seed) \
  && cp -r $(RERANK)/without-* $(RERANK)-$(seed) && rewrite-train rerank configs/rerank/lm-1.5b.yaml --set seed=$(seed) \
  --set output=$(RERANK)-$(seed)))
$(call job,rerank-cross-encoder,,rewrite-train rerank configs/rerank/cross-encoder.yaml --leave-one-out \
  && rewrite-train rerank configs/rerank/cross-encoder.yaml)

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
$(foreach seed,0 $(SEEDS),$(call job,masstool-paper-$(seed),masstool-$(seed),$(TABLE)/toollens-masstool.yaml --seeds $(seed) \
  --no-ablation --paper --out $(DONE)/masstool-paper-$(seed).json --set retrievers.masstool.model=$(DONE)/encoder-$(seed) \
  --set retrievers.masstool.train.encoder=null))
$(foreach name,toole toolbench,$(call job,masstool-$(name),,$(TABLE)/masstool.yaml --set dataset=$(name) --no-ablation --out $(DONE)/masstool-$(name).json))
$(call job,masstool-mpnet,mpnet,$(TABLE)/toollens-masstool.yaml --no-ablation --out $(DONE)/masstool-mpnet.json \
  --set retrievers.masstool.model=sentence-transformers/all-mpnet-base-v2)
$(call job,masstool-life,,python benchmarks/masstool_life.py configs/index/toollens-masstool.yaml --tune --out $(DONE)/masstool-life.json)

WIDE := {toolgen: {retriever: toolgen, index: runs/toollens/toolgen-unmemorised}, wide: {retriever: toolweaver, index: runs/toollens/weaver-wide}}
# ToolGen, ToolWeaver, and tuned MiniLM by ToolBench's groups.
$(call job,eval-weaver-wide,index-toollens-weaver-wide index-toollens-toolgen-unmemorised,$(EVAL)/toollens-weaver.yaml \
  --set output=runs/toollens/eval-weaver-wide --set "systems=$(WIDE)")
$(call job,weaver-newcomers,,python benchmarks/generative_newcomers.py --kind toolweaver --data data/toollens --text description \
  --quantiser 2 256 --epochs 12 4 --learning-rate 5e-4 --no-further)
comma := ,
$(call job,tuned-toolbench,index-toolbench-tuned,$(EVAL)/untrained.yaml --set dataset=toolbench --set group_by=group \
  --set output=runs/toolbench/eval-tuned \
  --set index=runs/toolbench/tuned --set "systems={tuned: {retriever: dense}}" --set "metrics=[recall@3$$(comma) recall@5$$(comma) \
  ndcg@1$$(comma) ndcg@3$$(comma) ndcg@5$$(comma) comp@5$$(comma) ndcg_toolgen@1$$(comma) ndcg_toolgen@3$$(comma) ndcg_toolgen@5]")

# Rewriters of known tools: fine-tuning, then alignment with three seeds.
$(call job,sft-toollens,targets-toollens,rewrite-train sft configs/sft/toollens.yaml)
$(call job,sft-toollens-qwen,targets-toollens qwen,rewrite-train sft configs/sft/toollens-qwen.yaml)
$(call job,eval-toollens-qwen,sft-toollens sft-toollens-qwen,$(EVAL)/toollens-qwen.yaml)
$(call job,sft-any,targets-any,rewrite-train sft configs/sft/toollens-any.yaml)
$(foreach algo,dpo grpo rloo ppo bestofn,$(call job,$(algo)-toollens,sft-any targets-toollens,$(ALIGN)/toollens-$(algo).yaml))
$(call job,dpo-own-toollens,sft-any targets-toollens,$(ALIGN)/toollens-dpo.yaml --set algo.pairing.include_target=false \
  --set output=runs/toollens/dpo-own)
$(foreach seed,$(SEEDS),\
  $(call job,dpo-toollens-$(seed),sft-any targets-toollens,$(ALIGN)/toollens-dpo.yaml --set training.seed=$(seed) \
    --set algo.samples.seed=$(seed) --set output=runs/toollens/dpo-$(seed))\
  $(call job,grpo-toollens-$(seed),sft-any targets-toollens,$(ALIGN)/toollens-grpo.yaml --set training.seed=$(seed) --set output=runs/toollens/grpo-$(seed))\
  $(call job,eval-toollens-seed-$(seed),eval-toollens-aligned dpo-toollens-$(seed) grpo-toollens-$(seed),$(EVAL)/toollens-aligned.yaml \
    --set output=runs/toollens/eval-aligned-$(seed) --set rewriters.dpo.path=runs/toollens/dpo-$(seed) \
    --set rewriters.grpo.path=runs/toollens/grpo-$(seed)))
$(call job,eval-toollens-aligned,sft-toollens $(addsuffix -toollens,dpo dpo-own grpo rloo ppo bestofn),$(EVAL)/toollens-aligned.yaml)
$(call job,eval-toollens-seeds,$(addprefix eval-toollens-seed-,$(SEEDS)),true)
$(call job,eval-toollens-before,eval-toollens-aligned index-toollens-tuned index-toollens-masstool,\
  $(EVAL)/toollens-before.yaml)

# Rewriters of catalogues never seen. $(call align_job,NAME,CATALOGUE,CONFIG,FOLDER,--set FLAGS): align, then evaluate.
PICKS_toolbench := pick-toole pick-bfcl pick-mcpzero index-toollens
$(foreach name,toole bfcl mcpzero,$(eval PICKS_$(name) := pick-toollens $(addprefix pick-,$(filter-out $(name),$(CATALOGUES)))))
WITHOUT_bfcl := --set dataset=bfcl
WITHOUT_toole := --set dataset=toole --set data.2.targets=runs/bfcl/pick
WITHOUT_mcpzero := --set dataset=mcpzero --set data.3.targets=runs/bfcl/pick
WITHOUT_toolbench := --set dataset=toolbench --set "data=[{targets: runs/toole/pick}, {targets: runs/bfcl/pick}, {targets: runs/mcpzero/pick}]"
GROUPS_toolbench := --set group_by=group
UNSEEN := --set dataset=toollens --set protocol=unseen-tools --set rewriters.sft.path=runs/without-toolbench/sft
# $(call evaluate,CATALOGUE,FOLDER,NAME OF THE EVALUATION): of a rewriter in runs/without-CATALOGUE/FOLDER.
evaluate = $(EVAL)/aligned.yaml --set dataset=$(1) $(GROUPS_$(1)) --set rewriters.aligned.path=runs/without-$(1)/$(2) \
  --set output=runs/without-$(1)/eval-$(3) $(if $(filter toolbench,$(1)),&& $(EVAL)/aligned.yaml $(UNSEEN) \
  --set rewriters.aligned.path=runs/without-toolbench/$(2) --set output=runs/unseen-toollens/eval-$(3))
align_job = $(call job,$(1),without-$(2),$(ALIGN)/$(3).yaml $(WITHOUT_$(2)) --set output=runs/without-$(2)/$(4) $(5) \
  && $(call evaluate,$(2),$(4),$(or $(6),$(4))))
$(foreach name,$(CATALOGUES),$(call job,without-$(name),qwen index-$(name) $(PICKS_$(name)),\
  rewrite-train sft configs/sft/without.yaml $(WITHOUT_$(name)) && $(EVAL)/rewritten.yaml --set dataset=$(name) $(GROUPS_$(name)) \
  $(if $(filter toolbench,$(name)),&& $(EVAL)/rewritten.yaml $(UNSEEN) --set output=runs/unseen-toollens/eval))\
  $(call align_job,aligned-$(name),$(name),without,grpo,,aligned)\
  $(foreach seed,$(SEEDS),$(call align_job,aligned-$(name)-$(seed),$(name),without,grpo-$(seed),--set training.seed=$(seed))))
QUERIES_mcpzero := --set queries=5000
$(foreach name,mcpzero bfcl,$(call align_job,dpo-$(name),$(name),without-dpo,dpo,$(QUERIES_$(name)))\
  $(call align_job,long-$(name),$(name),without,long,--set queries=4096)\
  $(call align_job,fast-$(name),$(name),without,fast,--set training.learning_rate=1.5e-5)\
  $(foreach seed,$(SEEDS),$(call align_job,dpo-$(name)-$(seed),$(name),without-dpo,dpo-$(seed),$(QUERIES_$(name)) \
  --set training.seed=$(seed) --set algo.samples.seed=$(seed))))

# Rewriters that split requests with several needs, on catalogues never seen, in front of the default hybrid.
RAPID := toollens toolbench toolbench_extra
MANY := n8n fc_mix sgd nl2bash
ONE := toole clinc150 hwu64
AWAY := mcpzero mcp_mix ansible sample
TEST := toollens toolbench mcpzero sample
INDEX_sample := --set catalogue=bundled:sample
$(foreach name,$(RAPID) $(MANY) $(ONE) $(AWAY) apollo_tau,$(call job,needs-index-$(name),,\
  rewrite-index build configs/index/needs.yaml --set dataset=$(name) $(INDEX_$(name))))
$(foreach name,$(RAPID) $(MANY) $(ONE) apollo_tau,$(call job,needs-targets-$(name),needs-index-$(name),rewrite-train targets \
  configs/targets/needs.yaml --set dataset=$(name) $(if $(filter $(ONE),$(name)),--set abstain=0.6 --set max_examples=700)))
OTHERS := "data=[$(foreach name,$(MANY) $(ONE),{targets: runs/needs/$(name)/targets}$(comma)) {targets: runs/needs/apollo_tau/targets}]"
NEEDS_others := --set output=runs/needs/others --set $(OTHERS)
# $(call needs_eval,CATALOGUE,FOLDER OF THE FINE-TUNING,FOLDER OF THE ALIGNMENT,SUFFIX)
ON_sample := --set data=bundled:sample
needs_eval = $(call job,needs-eval-$(1)$(4),needs-index-$(1) needs-$(2),$(EVAL)/needs.yaml --set dataset=$(1) $(ON_$(1)) \
  --set rewriters.sft.path=runs/needs/$(2) --set rewriters.grpo.path=runs/needs/$(3) --set output=runs/needs/$(1)/eval$(4) \
  $(if $(filter $(TEST),$(1)),--set split=test))
$(call job,needs-sft,qwen $(addprefix needs-targets-,$(RAPID) $(ONE) apollo_tau),rewrite-train sft configs/sft/needs.yaml \
  && $(ALIGN)/needs.yaml)
$(call job,needs-others,qwen $(addprefix needs-targets-,$(MANY) $(ONE) apollo_tau),rewrite-train sft configs/sft/needs.yaml \
  $(NEEDS_others) && $(ALIGN)/needs.yaml --set start.path=runs/needs/others --set output=runs/needs/others-grpo --set $(OTHERS))
$(foreach seed,$(SEEDS),$(call job,needs-sft-$(seed),needs-sft,rewrite-train sft configs/sft/needs.yaml \
  --set training.seed=$(seed) --set output=runs/needs/sft-$(seed) \
  && $(ALIGN)/needs.yaml --set start.path=runs/needs/sft-$(seed) --set output=runs/needs/grpo-$(seed)))
$(foreach name,$(MANY) $(AWAY),$(call needs_eval,$(name),sft,grpo)$(foreach seed,$(SEEDS),\
  $(call needs_eval,$(name),sft-$(seed),grpo-$(seed),-$(seed))))
$(foreach name,toollens toolbench,$(call needs_eval,$(name),others,others-grpo))

# Larger encoders on the same sets, alone and in the hybrid: encoder-mpnet-n8n
NEW := "systems={minilm: {retriever: minilm}$(comma) tools: {retriever: tools}$(comma) new: {retriever: new}$(comma) \
  hybrid: {retriever: hybrid}$(comma) hybrid-new: {retriever: hybrid-new}}"
judge = $(call job,encoder-$(1)-$(2),encoder-$(1),rewrite-index build configs/index/needs.yaml --set dataset=$(2) \
  $(INDEX_$(2)) --set index=runs/needs/$(2)/$(1) --set "retrievers.new={kind: dense$(comma) model: runs/encoder/tools-$(1)/encoder}" \
  --set "retrievers.minilm={kind: dense$(comma) model: bundled:minilm}" --set "retrievers.hybrid-new={kind: hybrid$(comma) of: [bm25$(comma) new]}" \
  && $(EVAL)/needs.yaml --set dataset=$(2) $(ON_$(2)) $(if $(filter $(TEST),$(2)),--set split=test) --set index=runs/needs/$(2)/$(1) \
  --set "rewriters={}" --set $(NEW) --set output=runs/needs/$(2)/eval-$(1))
$(foreach name,$(MANY) $(AWAY) toollens toolbench,$(call judge,mpnet,$(name))$(call judge,gte,$(name)))

# The same in the model's own words: the best of its own rewrites, silence where none gains; then GRPO from there.
OWN := $(RAPID) $(ONE) apollo_tau
$(foreach name,$(OWN),$(call job,needs-own-targets-$(name),needs-index-$(name),rewrite-train targets \
  configs/targets/needs-own.yaml --set dataset=$(name)))
OWN_DATA := "data=[$(foreach name,$(RAPID) clinc150 hwu64,{targets: runs/needs/$(name)/own}$(comma)) \
  {targets: runs/needs/apollo_tau/own$(comma) left_out: true}$(comma) {targets: runs/needs/toole/own$(comma) left_out: true}]"
# $(call own,SEED,SUFFIX)
own = $(call job,needs-own$(2),qwen-1.5b $(addprefix needs-own-targets-,$(OWN)),$(ALIGN)/needs-own.yaml --set training.seed=$(1) \
  --set algo.samples.seed=$(1) --set output=runs/needs/own$(2) && $(ALIGN)/needs.yaml --set start.path=runs/needs/own$(2) \
  --set training.method=lora --set training.learning_rate=3e-5 --set training.seed=$(1) --set algo.max_tokens=96 \
  --set training.batch_size=16 --set training.gradient_accumulation_steps=16 \
  --set reward.fusion.method=add --set evaluation.fusion.method=add --set output=runs/needs/own-grpo$(2) --set $(OWN_DATA))
$(call own,0)$(foreach seed,$(SEEDS),$(call own,$(seed),-$(seed)))
$(foreach name,$(MANY) $(AWAY),$(call needs_eval,$(name),own,own-grpo,-own)$(foreach seed,$(SEEDS),\
  $(call needs_eval,$(name),own-$(seed),own-grpo-$(seed),-own-$(seed))))

# Rewriters that split requests in front of MassTool, trained on its list: tools unseen in training, and tools that come late.
FROZEN := runs/frozen
MT := retrievers.masstool.train
# $(call frozen_jobs,NAME,CATALOGUE,PROTOCOL): index and targets; with three seeds fine-tuning, alignment, evaluation.
SFT_MT := rewrite-train sft configs/sft/masstool.yaml
LARGE := --set training.learning_rate=2e-5 --set training.batch_size=16
LARGE_GRPO := --set training.learning_rate=6e-6 --set training.batch_size=32 --set training.gradient_accumulation_steps=8
# $(call frozen_seed,NAME,CATALOGUE,PROTOCOL,SEED,SUFFIX,--set FLAGS OF THE FINE-TUNING,OF THE ALIGNMENT)
frozen_seed = $(call job,frozen-$(1)$(5)-$(4),frozen-targets-$(1) qwen-1.5b $(if $(5),qwen),$(SFT_MT) --set dataset=$(1) \
  --set training.seed=$(4) --set output=$(FROZEN)/$(1)/sft$(5)-$(4) $(6) && $(ALIGN)/masstool.yaml --set dataset=$(1) \
  --set start.path=$(FROZEN)/$(1)/sft$(5)-$(4) --set training.seed=$(4) --set output=$(FROZEN)/$(1)/grpo$(5)-$(4) $(7) \
  && $(EVAL)/masstool-rewritten.yaml --set dataset=$(2) --set protocol=$(3) --set index=$(FROZEN)/$(1)/index \
  --set rewriters.sft.path=$(FROZEN)/$(1)/sft$(5)-$(4) --set rewriters.grpo.path=$(FROZEN)/$(1)/grpo$(5)-$(4) \
  --set output=$(FROZEN)/$(1)/eval$(5)-$(4))
define frozen_jobs
$(call job,frozen-index-$(1),,$(call build,masstool,$(2)) --set index=$(FROZEN)/$(1)/index --set $(MT).protocol=$(3) \
  --set $(MT).folds=3 --set $(MT).fold_by=tools)
$(call job,frozen-targets-$(1),frozen-index-$(1),rewrite-train targets configs/targets/masstool.yaml --set dataset=$(2) \
  --set protocol=$(3) --set index=$(FROZEN)/$(1)/index --set output=$(FROZEN)/$(1)/needs)
$(foreach seed,0 $(SEEDS),$(call frozen_seed,$(1),$(2),$(3),$(seed)))
$(call frozen_seed,$(1),$(2),$(3),0,-0.5b,--set base=Qwen/Qwen2.5-Coder-0.5B-Instruct $(LARGE),$(LARGE_GRPO))
endef
$(call frozen_jobs,toollens,toollens,unseen-tools)
$(call frozen_jobs,toollens-late,toollens,late-tools)
$(call frozen_jobs,toolbench,toolbench,unseen-tools)

# ToolGen and ToolWeaver with 0.5B and with 135M weights, the same settings, three seeds; newcomers with 0.5B.
CODES_toolbench := --set $(WEAVER).quantiser.codebook_size=1024
set_rate = --set retrievers.$(1).train.memorise.learning_rate=$(2) --set retrievers.$(1).train.retrieve.learning_rate=$(2)
EPOCHS_toolbench = --set retrievers.$(1).train.memorise.epochs=3 --set retrievers.$(1).train.retrieve.epochs=4 \
  --set retrievers.$(1).train.retrieve.rehearse=1
SIZE_135m = --set retrievers.$(1).model=bundled:smollm2-135m $(call set_rate,$(1),5e-4)
SIZES := 0.5b 135m
# $(call sized,KIND,SIZE,CATALOGUE,MORE FLAGS): an index for each of three seeds.
sized = $(foreach seed,0 $(SEEDS),$(call job,$(1)-$(2)-$(3)-$(seed),$(if $(filter 0.5b,$(2)),qwen),rewrite-index build \
  configs/index/$(1)-0.5b.yaml --set dataset=$(3) $(TEXT_$(3)) --set index=runs/$(3)/$(1)-$(2)-$(seed) \
  --set retrievers.$(1).train.seed=$(seed) $(call EPOCHS_$(3),$(1)) $(call SIZE_$(2),$(1)) \
  $(if $(filter toolweaver,$(1)),--set $(WEAVER).quantiser.seed=$(seed) $(CODES_$(3)))))
sized_jobs = $(foreach kind,toolgen toolweaver,$(foreach seed,0 $(SEEDS),$(kind)-$(1)-$(2)-$(seed)))
sized_systems = $(foreach kind,toolgen toolweaver,$(foreach seed,0 $(SEEDS),--set \
  "systems.$(kind)-$(seed)={retriever: $(kind)$(comma) index: runs/$(2)/$(kind)-$(1)-$(seed)}"))
$(foreach size,$(SIZES),$(foreach name,toollens toolbench,$(call sized,toolgen,$(size),$(name))$(call sized,toolweaver,$(size),$(name))\
  $(call job,eval-$(size)-$(name),$(call sized_jobs,$(size),$(name)) index-$(name),$(EVAL)/untrained.yaml \
  --set dataset=$(name) --set output=runs/$(name)/eval-$(size) $(GROUPS_$(name)) $(call sized_systems,$(size),$(name)))))
$(call job,newcomers-0.5b,qwen,python benchmarks/generative_newcomers.py --data data/toollens --text description --epochs 8 3 \
  --model Qwen/Qwen2.5-Coder-0.5B-Instruct --batch 64 --learning-rate 1e-4 --no-further --out $(DONE)/newcomers-0.5b.json)

# Every retriever behind every rewriter.
$(call job,grid-mcpzero,index-mcpzero-learned index-mcpzero-masstool dpo-mcpzero,$(EVAL)/grid.yaml --set dataset=mcpzero \
  --set rewriters.aligned.path=runs/without-mcpzero/dpo)
$(call job,grid-bfcl,index-bfcl-learned index-bfcl-masstool aligned-bfcl-1,$(EVAL)/grid.yaml --set dataset=bfcl \
  --set rewriters.aligned.path=runs/without-bfcl/grpo-1)
$(call job,grid-unseen,index-unseen-toollens-learned index-unseen-toollens-masstool aligned-toolbench,$(EVAL)/toollens-unseen-grid.yaml)
$(call job,grid-toole,index-toole-learned index-toole-masstool aligned-toole,$(EVAL)/grid.yaml --set dataset=toole)
$(call job,grid-toollens,$(addprefix index-toollens,-tuned -masstool -toolgen -weaver-wide) index-toollens sft-toollens dpo-toollens qwen,\
  $(EVAL)/toollens-grid.yaml)
$(call job,grid-toolbench,index-toolbench-learned index-toolbench-masstool aligned-toolbench,\
  $(EVAL)/grid.yaml --set dataset=toolbench --set group_by=group)

.PHONY: $(ALL_JOBS) list
.DEFAULT_GOAL := list
list:  ; @printf '%s\n' $(sort $(ALL_JOBS))
$(ALL_JOBS): %: $(DONE)/%

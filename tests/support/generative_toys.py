"""Tools with meaningless names and a tiny model that learns them in seconds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from retrievers.generative.settings import AgentStage, GenerativeTraining, Stage, ToolGenSettings
from retrievers.settings import TrainingSource
from retrievers.training_set import Call, Examples, TrainingSet, Trajectory
from retrievers.types import Tool

WORDS = "blorp zindle quax frum teggle wix snarb plood".split()
TOOLS = [Tool(f"t{i}", f"{word}_tool", f"Does {word} things.") for i, word in enumerate(WORDS)]
IDS = tuple(tool.id for tool in TOOLS)
OPENINGS = ("please", "get me a", "now", "any", "the", "one")
QUERIES = tuple(f"{opening} {word}" for word in WORDS for opening in OPENINGS)
GOLD = tuple((i,) for i in range(len(WORDS)) for _ in OPENINGS)
TASKS = tuple(
    Trajectory(f"a{i}", f"do {word}", (Call("I look.", f"t{i}", {"what": word}, {"ok": True}),), "Done.")
    for i, word in enumerate(WORDS)
)
DATA = TrainingSet(
    "toy",
    tuple(tool.description for tool in TOOLS),
    Examples(QUERIES, GOLD),
    Examples(tuple(f"I want {word}" for word in WORDS), tuple((i,) for i in range(len(WORDS)))),
    IDS,
    trajectories=TASKS,
)
TRAINING = GenerativeTraining(
    (TrainingSource("toy"),),
    memorise=Stage(epochs=2, batch_size=8, learning_rate=3e-3),
    retrieve=Stage(epochs=6, batch_size=8, learning_rate=3e-3),
    save_every=2,
    patience=9,
)
ACTING = replace(TRAINING, agent=AgentStage(epochs=1, batch_size=8, learning_rate=1e-3, max_length=400))


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def save_toy_model(folder: Path, tied: bool = True, width: int = 64) -> Path:
    """An untrained model of two layers whose tokens are the toys' words and single bytes: it learns in seconds."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(
        [
            *QUERIES,
            "system",
            "user",
            "assistant",
            "Name the tool.",
            *(f"{tool.name} {tool.description}" for tool in TOOLS),
        ]
        * 4,
        trainer,
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=CHATML
    )
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=tied,
        initializer_range=0.15,  # much is told apart from the start
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def toolgen(model: Path, training: GenerativeTraining | None = None, indexing: str = "atomic") -> ToolGenSettings:
    return ToolGenSettings(model=str(model), indexing=indexing, train=training)  # type: ignore[arg-type]

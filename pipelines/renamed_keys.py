"""Config keys that have another name now. They are not read any more; the error of an unknown key names the new one."""

RENAMED_KEYS: dict[str, str] = {
    # old: new, in alphabetical order
    "accumulate": "gradient_accumulation_steps",
    "by": "engine",
    "chunk": "chunk_size",
    "distinct": "min_distinct",
    "joined": "max_lines",
    "kl": "kl_weight",
    "lam": "gae_lambda",
    "longer": "max_length_ratio",
    "memory": "gpu_memory",
    "minibatch": "minibatch_size",
    "most": "max_pairs",
    "most_characters": "max_characters",
    "most_lines": "max_lines",
    "most_queries": "max_queries",
    "most_tokens": "max_tokens",
    "parsed": "min_parsed",
    "readable": "parseable_only",
    "shorter": "min_length_ratio",
    "sure": "skip_rewrite_above",
    "target": "include_target",
    "url": "server_url",
    "votes": "min_votes",
}

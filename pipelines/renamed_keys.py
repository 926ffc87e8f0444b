"""Config keys that have another name now. They are not read any more; the error of an unknown key names the new one."""

RENAMED_KEYS: dict[str, str] = {
    # old: new, in alphabetical order
    "most_queries": "max_queries",
}

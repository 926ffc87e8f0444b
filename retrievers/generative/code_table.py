"""The table of tools and their codes, kept in the folder of a trained model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from retrievers.errors import BadInput, IndexBroken
from retrievers.generative.token_schemes import Code
from retrievers.out_of_memory import report_out_of_memory
from retrievers.types import ToolId

FORMAT = 2
FILE, ARRAYS = "tools.json", "codes.tensors"
"""The arrays are safetensors under another name: vLLM loads every *.safetensors of a folder as weights."""
SECOND_MOMENT = "second_moment"
"""Array of ToolWeaver: the second moment of the model's last states over the tools' documents."""
ENCODER = "encoder"
"""Array: fingerprint of the encoder whose vectors the codes were made from."""


@dataclass(frozen=True, slots=True)
class CodeTable:
    """The tools that a model was trained on."""

    indexing: str
    vocab_size: int
    """Tokens of the model, new ones included."""
    base_vocab_size: int
    """Tokens of the model before any were added."""
    codes: Mapping[ToolId, Code]
    own_logit: float | None = None
    """The mean logit of a tool's first token after the tool's own document. None where new tools do not need it."""
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write the table into a model's folder."""
        from safetensors.numpy import save_file

        facts = {name: value for name, value in asdict(self).items() if name != "arrays"}
        (folder / FILE).write_text(json.dumps({"format": FORMAT, **facts}, ensure_ascii=False))
        if self.arrays:
            save_file({name: np.ascontiguousarray(array) for name, array in self.arrays.items()}, folder / ARRAYS)

    @classmethod
    def read(cls, folder: Path) -> CodeTable:
        """Read the table of a model's folder."""
        from safetensors.numpy import load_file

        try:
            facts = json.loads((folder / FILE).read_text())
            version = facts.pop("format", 1)
            codes = {tool: tuple(code) for tool, code in facts.pop("codes").items()}
            with report_out_of_memory(folder):
                arrays = load_file(folder / ARRAYS) if (folder / ARRAYS).exists() else {}
            if version == FORMAT:
                return cls(**facts, codes=codes, arrays=arrays)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise IndexBroken(f"{folder / FILE} is missing or damaged; build the index again") from error
        raise IndexBroken(
            f"{folder / FILE} has format {version}, this version reads {FORMAT}; "
            "build the index again with `rewrite-index build`"
        )

    def check_encoder(self, fingerprint: str) -> None:
        """Refuse to place new tools by the vectors of another encoder."""
        used = self.arrays[ENCODER].tobytes().decode() if ENCODER in self.arrays else fingerprint
        if used != fingerprint:
            raise BadInput(
                f"the tools' codes were made with encoder {used}, but the config names encoder {fingerprint}; "
                "use the same encoder or build the index again"
            )


def encoder_array(fingerprint: str) -> dict[str, np.ndarray]:
    """The entry of `CodeTable.arrays` that names the encoder."""
    return {ENCODER: np.frombuffer(fingerprint.encode(), np.uint8)}

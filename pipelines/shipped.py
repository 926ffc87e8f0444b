"""Configs, example catalogue and version of the installed package."""

from __future__ import annotations

from pathlib import Path

CONFIGS = Path(__file__).parent / "configs"
"""In the repository a link to its folder `configs`, so that a wheel holds the files."""
EXAMPLE = "docs/examples/leisure-openapi.yaml"
"""The catalogue of the tutorial and of `configs/index/tutorial.yaml`."""
SHIPPED_EXAMPLE = Path(__file__).parent / "data" / "leisure-openapi.yaml"
"""In the repository a link to the example."""


def find_config(path: Path) -> Path:
    """The path; if it does not exist and begins with `configs/`, the one of that name which ships."""
    if path.exists() or path.parts[:1] != (CONFIGS.name,):
        return path
    shipped = CONFIGS.joinpath(*path.parts[1:])
    return shipped if shipped.exists() else path


def find_catalogue(source: str) -> str:
    """The catalogue; the example, where it does not exist, as it ships."""
    return str(SHIPPED_EXAMPLE) if source == EXAMPLE and not Path(source).exists() else source


def version() -> str:
    """Version of the installed package."""
    from importlib import metadata

    try:
        return metadata.version("toolrewrite")
    except metadata.PackageNotFoundError:
        return "not installed"

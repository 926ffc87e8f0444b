"""The page's files, read once. Their URLs contain a hash of all files, so browsers cache them for good."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from pipelines.report import FOLDER as REPORT

FOLDER = Path(__file__).parent / "assets"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_NOWHERE = "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
_OWN = "default-src 'none'; img-src 'self'; connect-src 'self'"
POLICY = (
    f"{_OWN}; script-src 'self'; style-src 'self'; {_NOWHERE}; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Of the page: own files only, and trusted types, so that no script can turn text into markup."""
_SCRIPT = b64encode(sha256((REPORT / "script.js").read_bytes()).digest()).decode()
REPORT_POLICY = (
    f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{_SCRIPT}'; {_NOWHERE}; sandbox allow-scripts"
)
"""Of a report: inline styles for its charts, the one script of our reports, and no network."""
FRAME_POLICY = f"{_OWN}; script-src 'self' 'sha256-{_SCRIPT}'; style-src 'self' 'unsafe-inline'; {_NOWHERE}"
"""Of the page around a report; the report's frame inherits it."""


@dataclass(frozen=True, slots=True)
class Asset:
    """One file, ready to send."""

    data: bytes
    type: str
    etag: str


class Assets:
    """All files of the page."""

    def __init__(self) -> None:
        files = {path.name: path.read_bytes() for path in sorted(FOLDER.iterdir()) if path.suffix in TYPES}
        whole = sha256(b"".join(name.encode() + b"\0" + sha256(data).digest() for name, data in files.items()))
        self.version = whole.hexdigest()[:16]
        self._files = {
            name: self._asset(name, data.replace(b"VERSION", self.version.encode()) if name.endswith(".html") else data)
            for name, data in files.items()
        }

    def page(self, name: str) -> Asset:
        """An HTML file."""
        return self._files[f"{name}.html"]

    def find(self, version: str, name: str) -> Asset | None:
        """Another file of this version; None if there is none."""
        known = version == self.version and not name.endswith(".html")
        return self._files.get(name) if known else None

    @staticmethod
    def _asset(name: str, data: bytes) -> Asset:
        return Asset(data, TYPES[Path(name).suffix], f'"{sha256(data).hexdigest()[:32]}"')

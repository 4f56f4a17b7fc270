"""The Monitor: a page that shows the pulse. Plain HTML, CSS and ES modules in `static/`; nothing is built or fetched
from elsewhere."""

from __future__ import annotations

from pathlib import Path

STATIC = Path(__file__).parent / "static"
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; media-src blob:; "
    "connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Only our own files, and images, audio and video that the page has fetched; no inline script or style, no framing."""

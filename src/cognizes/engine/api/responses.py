"""JSON that can carry whatever an agent said."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse

from cognizes.engine.database.documents import dump_json


class DocumentResponse(JSONResponse):
    """JSON whose strings may hold lone surrogates (escaped) and whose numbers may be NaN (``{"$float": "NaN"}``)."""

    def render(self, content: Any) -> bytes:
        return dump_json(content).encode()


class ProblemResponse(DocumentResponse):
    """An error as RFC 9457 problem details."""

    media_type = "application/problem+json"

"""AttachmentPlugin: gives the bytes of attachments to ADK's models.

ADK's events refer to an attachment by its URL. The request to the model contains the bytes, and the event does not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_request import LlmRequest
from google.adk.plugins.base_plugin import BasePlugin
from google.genai import types
from typing_extensions import override

from cognizes.engine.artifacts.attachments import attachment_id_of
from cognizes.engine.engine import Engine
from cognizes.engine.hosting.attachments import PromptAttachments
from cognizes.engine.models import Session


class AttachmentPlugin(BasePlugin):
    """Replaces references to attachments in the requests of a hosted agent.

    Together they have at most `COGNIZES_MAX_ARTIFACT_BYTES`, the newest first; others become a text that names them.
    """

    def __init__(self, open_engine: Callable[[], Awaitable[Engine]]) -> None:
        super().__init__(name="cognizes_attachments")
        self._open_engine = open_engine

    @override
    async def before_model_callback(self, *, callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        """Replace the references of all contents, the newest content first."""
        if not any(_reference(part) for content in llm_request.contents for part in content.parts or ()):
            return
        engine = await self._open_engine()
        of_adk = callback_context.session
        session = Session(of_adk.id, of_adk.app_name, of_adk.user_id)
        attachments = PromptAttachments(engine, session, room=engine.settings.max_artifact_bytes)
        for place in range(len(llm_request.contents) - 1, -1, -1):
            content = llm_request.contents[place]
            parts: list[types.Part] = []
            for part in content.parts or ():
                if (attachment_id := _reference(part)) is None:
                    parts.append(part)
                    continue
                read = await attachments.read(attachment_id)
                if isinstance(read, str):
                    parts.append(types.Part(text=read))
                    continue
                found, data = read
                parts.append(types.Part(inline_data=types.Blob(data=data, mime_type=found.mime_type)))
            # The parts of a content are those of the stored event: a copy gets the bytes.
            llm_request.contents[place] = types.Content(role=content.role, parts=parts)


def _reference(part: types.Part) -> str | None:
    uri = part.file_data.file_uri if part.file_data else None
    return attachment_id_of(uri) if uri else None

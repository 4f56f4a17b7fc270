"""Token deltas: messages that are being written, chunk by chunk, for readers in any process."""

from cognizes.engine.streams.chunks import Chunk, ChunkPage, StreamHead, StreamStatus
from cognizes.engine.streams.message_streams import MessageStreams
from cognizes.engine.streams.writer import MessageWriter

__all__ = ["Chunk", "ChunkPage", "MessageStreams", "MessageWriter", "StreamHead", "StreamStatus"]

"""One live feed per thread: events, chunks and stream ends in one order."""

from cognizes.engine.feed.feed import Feed
from cognizes.engine.feed.thread_channel import Chunks, FeedItem, Notification, StreamEnd, StreamView

__all__ = ["Chunks", "Feed", "FeedItem", "Notification", "StreamEnd", "StreamView"]

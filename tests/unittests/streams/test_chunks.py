"""Segments, logs and the lengths that cut a body into the chunks it was streamed in."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cognizes.engine.database.documents import escape_text, unescape_text
from cognizes.engine.streams.chunks import (
    Chunk,
    DeltaLog,
    FinishedMessage,
    Segment,
    StreamStatus,
    fit_lengths,
    pack_lengths,
    unpack_lengths,
)

_DELTAS = st.lists(
    st.one_of(
        st.text(max_size=5),
        st.sampled_from(["", "\x00", "\ud83d", "\ude00", "\ue000", "\ue000d83d", "x" * 254, "x" * 255, "x" * 256]),
    ),
    max_size=60,
)


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_lengths_come_back(lengths: list[int]) -> None:
    assert list(unpack_lengths(pack_lengths(lengths))) == lengths


@given(_DELTAS, st.integers(0, 70), st.integers(1, 70))
@settings(max_examples=200)
def test_a_log_has_the_same_chunks_however_it_is_packed(deltas: list[str], after: int, limit: int) -> None:
    expected = [Chunk(number, delta) for number, delta in enumerate(deltas, 1)]
    log = DeltaLog(pack_deltas=8, segment_deltas=5)
    for delta in deltas:
        log.append(delta)
    assert log.chunks(after=after, limit=limit) == expected[after:][:limit]
    assert log.text == "".join(deltas)
    segments = log.segments(after=after)
    assert [chunk for segment in segments for chunk in segment.chunks()] == expected[after:]
    # What travels arrives, escaped as a text column wants it, whatever was there before.
    copy = DeltaLog(base=after, pack_deltas=8, segment_deltas=5)
    for segment in segments:
        text = unescape_text(escape_text(segment.text))
        copy.extend(Segment(segment.first_sequence, text, segment.lengths, segment.count))
        copy.extend(segment)
    assert copy.chunks(after=after, limit=100) == expected[after:]
    assert list(unpack_lengths(log.lengths)) == [len(delta) for delta in deltas]


@given(_DELTAS, st.integers(0, 70), st.integers(1, 70), st.none() | st.integers(0, 70))
@settings(max_examples=200)
def test_a_finished_message_is_cut_as_it_was_streamed(
    deltas: list[str], after: int, limit: int, up_to: int | None
) -> None:
    message = FinishedMessage.of("".join(deltas), [len(delta) for delta in deltas], StreamStatus.COMPLETED)
    page = message.page(after=after, up_to=up_to, limit=limit)
    asked = [Chunk(number, delta) for number, delta in enumerate(deltas, 1)][after:up_to]
    assert page.chunks == asked[:limit]
    assert page.has_more == (len(asked) > limit)
    assert page.current_sequence == len(deltas)


@pytest.mark.parametrize(
    ("deltas", "stored", "chunks"),
    [
        (["so ", "far"], "so far", ["so ", "far"]),
        (["so ", "far"], "so far, so good", ["so ", "far", ", so good"]),
        (["so ", "far"], "another text", ["ano", "ther text"]),
        (["so ", "far"], "s", ["s", ""]),
        ([], "never streamed", ["never streamed"]),
        ([], "", []),
    ],
)
def test_the_chunks_of_a_message_that_another_writer_stored(deltas: list[str], stored: str, chunks: list[str]) -> None:
    lengths = pack_lengths([len(delta) for delta in deltas])
    count, fitted = fit_lengths(lengths, streamed="".join(deltas), stored=stored)
    page = FinishedMessage.of(stored, unpack_lengths(fitted), StreamStatus.COMPLETED).page(
        after=0, up_to=None, limit=100
    )
    assert [chunk.delta for chunk in page.chunks] == chunks
    assert count == page.current_sequence

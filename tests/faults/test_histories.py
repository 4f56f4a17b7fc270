"""A checker that finds nothing proves nothing: each of them notices what it is for."""

from __future__ import annotations

from dataclasses import replace

from tests.faults.histories import Acknowledged, Stored, find_disorder, find_losses, find_wrong_counts

STORED = [Stored(f"e{number}", number, number + 1, True, number) for number in range(1, 6)]
ANSWERS = [Acknowledged(event.event_id, event.sequence, event.version, number, number + 0.5)
           for number, event in enumerate(STORED)]  # fmt: skip


def test_a_good_history_has_no_problem() -> None:
    assert find_losses(ANSWERS, STORED) == find_disorder(ANSWERS, STORED) == find_wrong_counts(STORED) == []


def test_overlapping_requests_may_stand_in_any_order() -> None:
    together = [replace(answer, asked_at=0.0, answered_at=9.0) for answer in ANSWERS]
    assert find_disorder(together, STORED) == []


def test_a_lost_event_is_noticed() -> None:
    assert find_losses(ANSWERS, STORED[:-1])


def test_an_event_stored_twice_is_noticed() -> None:
    assert find_losses(ANSWERS, [*STORED, replace(STORED[0], sequence=6)])


def test_a_gap_is_noticed() -> None:
    assert find_losses(ANSWERS[:2], [STORED[0], STORED[1], STORED[3]])


def test_another_place_than_acknowledged_is_noticed() -> None:
    assert find_losses([replace(ANSWERS[0], sequence=2)], STORED)


def test_an_order_against_the_clock_is_noticed() -> None:
    late = replace(ANSWERS[0], asked_at=100.0, answered_at=101.0)
    assert find_disorder([late, *ANSWERS[1:]], STORED)


def test_a_version_taken_twice_is_noticed() -> None:
    assert find_disorder(ANSWERS, [*STORED[:-1], replace(STORED[-1], version=STORED[-2].version)])


def test_a_lost_update_is_noticed() -> None:
    assert find_wrong_counts([*STORED[:-1], replace(STORED[-1], value=STORED[-2].value)])

"""The arithmetic of a score, without a database."""

from __future__ import annotations

from cognizes.engine.memory.recall import Candidate, Pool, Weights, rank


def order(
    *candidates: Candidate, edges: list[tuple[int, int]] | None = None, words: set[str] | None = None
) -> list[int]:
    return [candidate.id for candidate in rank(Pool(list(candidates), list(edges or []), set(words or ())), Weights())]


def test_words_count_more_than_meaning() -> None:
    assert order(Candidate(1, bm25=1, cosine=0.1), Candidate(2, bm25=0.1, cosine=0.9)) == [1, 2]


def test_without_vectors_words_decide_alone() -> None:
    (best, _) = rank(Pool([Candidate(1, bm25=4), Candidate(2, bm25=2)], [], set()), Weights())
    assert best.parts["words"] == 1
    assert best.parts["meaning"] == 0


def test_a_rare_word_beats_many_common_ones() -> None:
    common = Candidate(1, bm25=9, cosine=0.9, session_id="s")
    exact = Candidate(2, bm25=6, cosine=0.1, rarity=2)
    assert order(common, exact) == [2, 1]


def test_a_question_raises_its_answer() -> None:
    question, answer, other = Candidate(1, bm25=5), Candidate(2), Candidate(3, bm25=1)
    assert order(question, answer, other, edges=[(1, 2)]) == [1, 2, 3]


def test_the_named_speaker_comes_first() -> None:
    his, hers = Candidate(1, bm25=5, author="Bob"), Candidate(2, bm25=5, author="Ada")
    assert order(his, hers, words={"ada", "tea"}) == [2, 1]


def test_a_session_that_talks_about_it_comes_first() -> None:
    there = [Candidate(number, bm25=3, session_id="s") for number in (1, 2, 3)]
    alone = Candidate(9, bm25=3, session_id="t")
    assert order(*there, alone)[-1] == 9


def test_the_parts_are_the_score() -> None:
    pair = [Candidate(1, bm25=5, cosine=0.5, session_id="s"), Candidate(2, cosine=0.2, session_id="s")]
    for candidate in rank(Pool(pair, [(1, 2)], set()), Weights()):
        assert abs(sum(candidate.parts.values()) - candidate.score) < 1e-9


def test_nothing_found() -> None:
    assert order() == []

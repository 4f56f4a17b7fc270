"""The arithmetic of a score, without a database."""

from __future__ import annotations

from cognizes.engine.memory.embedders.embedder import WordLlamaEmbedder
from cognizes.engine.memory.ranking import Candidate, Edge, Pool, Weights, explain, keep_related, rank
from cognizes.engine.memory.recall import QueryTerms, default_weights, weigh_words


def order(*candidates: Candidate, edges: tuple[Edge, ...] = (), words: tuple[str, ...] = ()) -> list[int]:
    return [candidate.id for candidate in rank(Pool(list(candidates), edges, words), Weights())]


def test_words_and_meaning_count_alike_on_absolute_scales() -> None:
    assert order(Candidate(1, share=0.6, cosine=0.1), Candidate(2, share=0.1, cosine=0.4)) == [1, 2]
    assert order(Candidate(1, share=0.3, cosine=0.1), Candidate(2, share=0.0, cosine=0.5)) == [2, 1]


def test_the_score_does_not_depend_on_the_other_candidates() -> None:
    def score(*others: Candidate) -> float:
        ranked = rank(Pool([Candidate(1, share=0.4, cosine=0.3), *others], (), ()), Weights())
        return next(candidate.score for candidate in ranked if candidate.id == 1)

    assert score() == score(Candidate(2, share=0.9, cosine=0.9)) == score(Candidate(2, share=0.1))


def test_the_words_stand_in_for_a_vector_that_has_not_arrived() -> None:
    before, after = Candidate(1, share=0.4), Candidate(2, share=0.4, cosine=0.4)
    (first, second) = rank(Pool([before, after], (), ()), Weights())
    assert first.score == second.score
    # A vector that is not similar is another matter.
    assert order(Candidate(1, share=0.4), Candidate(2, share=0.4, cosine=0.0)) == [1, 2]


def test_an_identifier_beats_many_common_words() -> None:
    common = Candidate(1, share=0.6, cosine=0.6)
    exact = Candidate(2, share=0.2, cosine=0.1, rarity=10)
    assert order(common, exact) == [2, 1]


def test_a_question_raises_its_answer() -> None:
    question, answer, other = Candidate(1, share=0.5), Candidate(2), Candidate(3, share=0.1)
    assert order(question, answer, other, edges=(Edge(1, 2, 1),)) == [1, 2, 3]


def test_a_nearer_neighbour_gets_more() -> None:
    hit, near, far = Candidate(1, share=0.5), Candidate(2), Candidate(3)
    assert order(hit, far, near, edges=(Edge(1, 2, 1), Edge(1, 3, 2))) == [1, 2, 3]


def test_a_short_remark_gets_little_from_a_long_text() -> None:
    text, remark = Candidate(1, share=0.5, length=300), Candidate(2, length=1)
    reply = Candidate(3, length=300)
    assert order(text, remark, reply, edges=(Edge(1, 2, 1), Edge(1, 3, 1))) == [1, 3, 2]


def test_a_passage_of_several_matches_comes_before_one_match() -> None:
    """Turns between two matches, with four more matches further away in a session of their own."""
    passage = [Candidate(n, share=0.9 if n in (1, 5) else 0.3, length=20, session_id="s") for n in range(1, 6)]
    single = [Candidate(n, share=0.9 if n == 11 else 0.3, length=20, session_id="t") for n in range(11, 16)]
    edges = [Edge(a, b, b - a) for first in (1, 11) for a in range(first, first + 4) for b in (a + 1, a + 2, a + 3)]
    known = {one.id for one in (*passage, *single)}
    ranked = rank(Pool([*passage, *single], [e for e in edges if {e.earlier, e.later} <= known], ()), Weights())
    by_id = {one.id: one for one in ranked}
    assert by_id[4].parts["passage"] > by_id[14].parts["passage"] > 0
    assert "in a passage that matches" in explain(by_id[3], ())
    # A match alone is its own passage; others do not change it, so the reason is left out.
    assert "passage" not in explain(rank(Pool([Candidate(1, share=0.9)], (), ()), Weights())[0], ())


def test_a_passage_is_measured_in_words() -> None:
    def received(length: int) -> float:
        match, near = Candidate(1, share=0.9, length=length), Candidate(2, share=0.2, length=length)
        rank(Pool([match, near], (Edge(1, 2, 1),), ()), Weights())
        return near.from_passage

    assert received(10) > 2 * received(400) > 0


def test_a_passage_follows_consecutive_memories_beyond_the_known_pairs() -> None:
    """The pairs reach three memories; matches further away are connected through the memories between them."""
    turns = [Candidate(n, share=0.9 if n == 1 else 0.2, length=5) for n in range(1, 7)]
    edges = [Edge(1, 2, 1), Edge(1, 3, 2), Edge(1, 4, 3), Edge(3, 6, 3), Edge(4, 6, 2), Edge(5, 6, 1)]
    rank(Pool(turns, edges, ()), Weights())
    received = [one.from_passage for one in turns]
    assert received[1] > received[2] > received[3] > received[4] > received[5] > 0


def test_passages_need_the_cosines_that_their_threshold_was_measured_with() -> None:
    assert default_weights(None).passage == 0
    assert default_weights(WordLlamaEmbedder()).passage == 1


def test_weak_matches_do_not_form_a_passage() -> None:
    turns = [Candidate(n, share=0.2, length=5) for n in range(1, 4)]
    rank(Pool(turns, (Edge(1, 2, 1), Edge(2, 3, 1)), ()), Weights())
    assert [one.parts["passage"] for one in turns] == [0, 0, 0]


def test_the_named_speaker_comes_first() -> None:
    his, hers = Candidate(1, share=0.5, author="Bob"), Candidate(2, share=0.5, author="Ada")
    assert order(his, hers, words=("ada", "tea")) == [2, 1]


def test_a_session_that_talks_about_it_comes_first() -> None:
    there = [Candidate(1, share=0.9, session_id="s"), Candidate(2, share=0.3, session_id="s")]
    alone = Candidate(9, share=0.3, session_id="t")
    assert order(*there, alone) == [1, 2, 9]


def test_the_score_is_the_sum_of_the_parts_between_0_and_1() -> None:
    pair = [Candidate(1, share=0.9, cosine=1.0, session_id="s"), Candidate(2, cosine=0.2, session_id="s")]
    for candidate in rank(Pool(pair, (Edge(1, 2, 1),), ()), Weights()):
        total = sum(candidate.parts.values())
        assert abs(total / (1 + total) - candidate.score) < 1e-9
        assert 0 < candidate.score < 1


def test_a_query_that_matches_neither_a_word_nor_a_meaning_has_no_candidates() -> None:
    assert keep_related([Candidate(1, cosine=0.12), Candidate(2, cosine=0.0)]) == []
    assert [one.id for one in keep_related([Candidate(1, cosine=0.2), Candidate(2, cosine=0.1)])] == [1, 2]
    assert [one.id for one in keep_related([Candidate(1, share=0.1), Candidate(2, cosine=0.0)])] == [1]
    # Among many memories one is that near by chance.
    many = [Candidate(number, cosine=0.0) for number in range(2, 200)]
    assert keep_related([Candidate(1, cosine=0.2), *many]) == []
    assert [one.id for one in keep_related([Candidate(1, cosine=0.3), *many])] == [1]
    assert keep_related([Candidate(1, cosine=0.3)], compared=5000) == []
    assert [one.id for one in keep_related([Candidate(1, cosine=0.35)], compared=5000)] == [1]


def test_the_same_match_scores_the_same_with_and_without_a_session() -> None:
    turn, note = Candidate(1, share=0.5, session_id="s"), Candidate(2, share=0.5)
    rank(Pool([turn, note], (), ()), Weights())
    assert turn.score == note.score


def test_an_article_names_no_speaker() -> None:
    cook = Candidate(1, share=0.5, author="The Cook")
    rank(Pool([cook], (), ("the", "tea")), Weights())
    assert cook.parts["speaker"] == 0
    rank(Pool([cook], (), ("cook", "tea")), Weights())
    assert cook.parts["speaker"] > 0


async def test_frequent_words_weigh_less_in_the_vector_of_a_query() -> None:
    terms = QueryTerms(["what", "did", "caroline", "paint", "zebra"], [])
    words, weights = await weigh_words("What did Caroline paint, Zebra?", terms, [None, None, 0.1, 0.9, None])
    assert words == ["What", "did", "Caroline", "paint", "Zebra"]
    assert weights[2] < weights[0] == weights[1] == weights[4] < weights[3] == 1


def test_the_reasons_in_words() -> None:
    hit = Candidate(1, share=0.5, cosine=0.41, rarity=10, matched=[2, 1], author="Ada")
    rank(Pool([hit], (), ("ada", "tea")), Weights())
    assert explain(hit, ("ada", "tea")) == (
        "contains ada, tea (50% of the query's words); similar in meaning (cosine 0.41); "
        "hardly any other memory contains one of these words; said by Ada"
    )
    answer = Candidate(3)
    rank(Pool([Candidate(2, share=0.5), answer], (Edge(2, 3, 1),), ()), Weights())
    assert explain(answer, ()) == "next to memories that match; in a passage that matches"


def test_nothing_found() -> None:
    assert order() == []

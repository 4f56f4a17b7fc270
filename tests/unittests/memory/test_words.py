"""Words, the same for the index and for queries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cognizes.engine.memory.words import identifiers, in_slices, index_words, join_words, split_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Hello, World!", ["hello", "world"]),
        ("Caroline's dog doesn't", ["caroline", "dog", "doesn"]),
        ("CAFÉ ＡＢＣ Straße", ["cafe", "abc", "strasse"]),
        ("ORD-4711 is late", ["ord-4711", "ord", "4711", "is", "late"]),
        ("user_id", ["user_id", "user", "id"]),
        ("C++ and C#", ["c++", "c", "and", "c#", "c"]),
        ("退款政策", ["退款", "款政", "政策"]),
        ("我用Python写代码", ["我用", "python", "写代", "代码"]),
        ("茶", ["茶"]),
        ("ガラス がく", ["ガラ", "ラス", "がく"]),
        ("한국어", ["한국", "국어"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("  \x00 \ud800 …!? ", []),
        ("", []),
    ],
)
def test_split(text: str, words: list[str]) -> None:
    assert split_words(text) == words


def test_identifiers() -> None:
    assert identifiers("where is ORD-4711, user_id 42 and version 1.2.3 or a1b2?") == [
        "ord-4711",
        "user_id",
        "1.2.3",
        "a1b2",
    ]
    assert identifiers("an ordinary question about 退款政策") == []


@given(st.text())
def test_words_hold_no_spaces_and_can_be_stored(text: str) -> None:
    words = split_words(text)
    assert all(word and not any(sign.isspace() for sign in word) for word in words)
    joined = join_words(words)
    assert joined.split(" ") == (words or [""])
    joined.encode()
    assert "\x00" not in joined


@given(st.text(alphabet="的一是不了人我在有他这中大来上国", min_size=2, max_size=8), st.text(), st.text())
def test_a_chinese_word_is_found_in_any_sentence(word: str, before: str, after: str) -> None:
    assert set(split_words(word)) <= set(split_words(f"{before}{word}{after}"))


async def test_texts_are_split_in_slices_as_a_whole_text_is() -> None:
    long = "My dog's ORD-4711 is late。茶が好き! " * 2000
    texts = ["short", "", long, "退款" * 3000]
    assert await index_words(texts) == [join_words(split_words(text, for_index=True)) for text in texts]


async def test_a_slice_has_few_items_and_is_short() -> None:
    slices: list[list[str]] = []

    def work(part: list[str]) -> list[int]:
        slices.append(part)
        return [len(text) for text in part]

    texts = ["x" * 10] * 100 + ["y" * 1500] * 3 + ["z" * 5000]
    assert await in_slices(texts, work, size=len) == [len(text) for text in texts]
    assert max(len(part) for part in slices) <= 16
    assert all(sum(map(len, part)) <= 2000 for part in slices if len(part) > 1)
    assert await in_slices([], work) == []


def test_the_index_contains_single_ideographs_and_a_query_only_if_they_stand_alone() -> None:
    assert split_words("我有一只猫", for_index=True)[4:] == ["我", "有", "一", "只", "猫"]
    assert split_words("猫", for_index=True) == split_words("猫") == ["猫"]
    assert "猫" not in split_words("我有一只猫")

"""Free text and captions with tokens meet in one vocabulary."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deixis.corpus import Phrase, make_caption
from deixis.text.tokens import has_content, tokenize, tokens_of


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Two dogs run.", "Two dogs run ."),
        ("A man's hat isn't his; they're ours", "A man 's hat is n't his ; they 're ours"),
        ("can't won't I'm he'd we've she'll", "ca n't wo n't I 'm he 'd we 've she 'll"),
        ("The dogs' bowl", "The dogs ' bowl"),
        ("a red-haired girl in a T-shirt", "a red-haired girl in a T-shirt"),
        ("a mother-in-law's car", "a mother-in-law 's car"),
        ("five o'clock, rock'n'roll, O'Neill", "five o'clock , rock'n'roll , O'Neill"),
        ("$3.50, 1,000 and 2/3 at 10:30", "$ 3.50 , 1,000 and 2/3 at 10:30"),
        ("In the U.S. at 9 a.m. with Mr. Smith.", "In the U.S. at 9 a.m. with Mr. Smith ."),
        ('"STOP" (red) -- wait...', '" STOP " ( red ) -- wait ...'),
        ("naïve café, Straße, 東京", "naïve café , Straße , 東京"),
        ("cafe\u0301", "café"),
        ("हिन्दी भाषा", "हिन्दी भाषा"),
        ("the man’s", "the man 's"),
        ("❤️ 👨‍👩‍👧!", "❤️ 👨‍👩‍👧 !"),
        ("snake_case", "snake _ case"),
        ("", ""),
        (" \t\n", ""),
    ],
)
def test_splits_text_as_flickr30k_captions_are_split(text: str, tokens: str) -> None:
    assert tokenize(text) == tuple(tokens.split())


@given(st.text())
def test_no_character_is_lost_and_no_token_has_a_space(text: str) -> None:
    import unicodedata

    tokens = tokenize(text)
    whole = "".join(unicodedata.normalize("NFC", text).replace("\u2019", "'").split())
    assert "".join(tokens) == whole
    assert all(token and not any(map(str.isspace, token)) for token in tokens)


@pytest.mark.parametrize(
    "hostile", ["a." * 50_000 + "aa", "1." * 50_000 + "a", "n't" * 50_000, "-'" * 50_000, "a-" * 50_000]
)
def test_hostile_text_takes_linear_time(hostile: str) -> None:
    start = time.perf_counter()
    tokenize(hostile)
    assert time.perf_counter() - start < 5


def test_tokens_of_a_caption_keep_to_its_phrases() -> None:
    bare = make_caption("A Dog, running.")
    report = make_caption("A Dog, running.", tokens=["A", "Dog", ",", "running", "."])
    with_phrases = make_caption("A Dog, running.", phrases=[Phrase(0, 2)])
    assert tokens_of(bare) == tokens_of(report) == tokens_of("A Dog, running.") == ("a", "dog", ",", "running", ".")
    # Spans count the caption's own tokens, so those stay as they are.
    assert tokens_of(with_phrases) == ("a", "dog,", "running.")


def test_content_is_letters_or_digits_without_the_words_word2vec_lacks() -> None:
    assert [has_content(token) for token in ("dog", "a", "to", "of", "and", ".", "--", "'s", "3", "é")] == [
        True, False, False, False, False, False, False, True, True, True,
    ]  # fmt: skip

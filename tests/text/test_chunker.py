"""The caption chunker: its phrases on captions of our own, its search for the best labels, its file."""

from __future__ import annotations

import itertools
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deixis.corpus import make_caption
from deixis.errors import InputError
from deixis.text import chunker as chunker_module
from deixis.text.chunker import INSIDE, OUTSIDE, Chunker, best_labels

#: Captions of our own with their phrases in brackets.
BRACKETED = [
    "[A man] in [an orange hat] starts [something] .",
    "[Two people] sitting on [rocking chairs] on [the deck] .",
    "[A small white dog] jumps over [a wooden fence] in [the park] .",
    "[Three women] and [a child] wait for [the bus] at [the corner] .",
    "[A group of people] walks across [a stone bridge] .",
    "[A girl] with [long brown hair] is reading [a book] to [her little brother] .",
]


def unbracketed(text: str) -> tuple[list[str], list[tuple[int, int]]]:
    tokens, spans, start = [], [], 0
    for piece in text.split():
        if piece.startswith("["):
            start = len(tokens)
        tokens.append(piece.strip("[]"))
        if piece.endswith("]"):
            spans.append((start, len(tokens)))
    return tokens, spans


@pytest.mark.parametrize("text", BRACKETED)
def test_finds_the_phrases_of_plain_captions(text: str) -> None:
    tokens, spans = unbracketed(text)
    assert Chunker.load().phrases(tokens) == spans


@pytest.mark.parametrize("text", BRACKETED)
def test_a_query_typed_in_lower_case_without_a_full_stop_has_the_same_phrases(text: str) -> None:
    tokens, spans = unbracketed(text)
    query = " ".join(tokens).lower().removesuffix(" .")
    assert Chunker.load().phrases(query) == spans
    assert Chunker.load().phrases(make_caption(query)) == spans


def test_together_and_one_by_one_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    captions = [unbracketed(text)[0] for text in BRACKETED]
    captions = [[], *captions, ["dog"], captions[0] * 9, []]
    alone = [Chunker.load().phrases(caption) for caption in captions]
    assert Chunker.load().phrases_of(captions) == alone
    monkeypatch.setattr(chunker_module, "BLOCK_TOKENS", 12)
    monkeypatch.setattr(chunker_module, "CACHED_WORDS", 5)
    assert Chunker.load().phrases_of(captions) == alone


def test_threads_do_not_disturb_each_other() -> None:
    captions = [[f"word{number}", "a", "dog", f"run{number}s", "the", f"x{number}"] for number in range(400)]
    fresh = Chunker(Chunker.load().vocabularies, Chunker.load().arrays)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(fresh.phrases, captions))
    assert found == Chunker.load().phrases_of(captions)


@settings(max_examples=60)
@given(st.lists(st.lists(st.text(max_size=8), max_size=12), max_size=5))
def test_phrases_are_in_order_apart_and_inside_any_tokens(captions: list[list[str]]) -> None:
    for tokens, spans in zip(captions, Chunker.load().phrases_of(captions), strict=True):
        edges = [edge for span in spans for edge in span]
        assert edges == sorted(edges)
        assert all(0 <= start < end <= len(tokens) for start, end in spans)


def test_best_labels_are_those_of_trying_all() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        lengths = random.integers(1, 6, size=4)
        starts = np.concatenate([[1], 1 + np.cumsum(lengths + 1)[:-1]])
        scores = random.normal(size=(lengths.sum() + 5, 3)).astype(np.float32)
        pairs, first, last = (random.normal(size=shape).astype(np.float32) for shape in ((3, 3), 3, 3))
        labels = best_labels(scores, starts, lengths, pairs, first, last)
        for start, length in zip(starts, lengths, strict=True):
            own = scores[start : start + length]
            values = {
                sequence: first[sequence[0]] + last[sequence[-1]] + own[range(length), sequence].sum()
                + sum(pairs[before, after] for before, after in itertools.pairwise(sequence))
                for sequence in itertools.product(range(3), repeat=length)
            }  # fmt: skip
            assert tuple(labels[start : start + length]) == max(values, key=values.__getitem__)
            assert labels[start + length] == OUTSIDE


def test_a_phrase_never_begins_inside() -> None:
    arrays = dict(Chunker.load().arrays)
    arrays["labels.bias"] = np.array([0, -50, 50], np.float32)  # as if every token were inside
    eager = Chunker(Chunker.load().vocabularies, arrays)
    spans = eager.phrases(["a"] * 5)
    assert spans in ([], [(0, 5)])
    assert INSIDE == 2


def test_written_and_read_again_it_finds_the_same(tmp_path: Path) -> None:
    Chunker.load().save(tmp_path / "chunker.safetensors")
    again = Chunker.load(tmp_path / "chunker.safetensors")
    captions = [unbracketed(text)[0] for text in BRACKETED]
    assert again.phrases_of(captions) == Chunker.load().phrases_of(captions)
    again.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "chunker.safetensors").read_bytes()


def test_another_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "broken.safetensors").write_bytes(b"not weights")
    with pytest.raises(InputError, match=r"broken\.safetensors: is not a chunker"):
        Chunker.load(tmp_path / "broken.safetensors")
    with pytest.raises(InputError, match=r"absent"):
        Chunker.load(tmp_path / "absent.safetensors")
    arrays = Chunker.load().arrays
    for wrong in ({"labels.bias": np.zeros(7, np.float32)}, {"vectors.word": arrays["vectors.word"][:, :5]}):
        Chunker(Chunker.load().vocabularies, {**arrays, **wrong}).save(tmp_path / "misfit.safetensors")
        with pytest.raises(InputError, match=r"misfit\.safetensors: is not a chunker"):
            Chunker.load(tmp_path / "misfit.safetensors")


def test_the_models_are_small() -> None:
    models = files("deixis.text") / "models"
    assert sum(len(entry.read_bytes()) for entry in models.iterdir() if entry.is_file()) < 2_000_000


def test_chunking_and_types_need_neither_torch_nor_spacy() -> None:
    code = (
        "import sys; from deixis.text.chunker import Chunker; from deixis.text.entity_types import EntityTypes;"
        "tokens = 'a dog runs'.split(); spans = Chunker.load().phrases(tokens);"
        "print(spans, EntityTypes.load().types_in(tokens, spans),"
        "[name for name in ('torch', 'spacy', 'sklearn', 'scipy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[(0, 2)] [('animals',)] []"

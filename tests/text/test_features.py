"""Text features promise: fitted to training captions alone, kept, and the same numbers wherever their files go."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import safetensors.numpy
from sklearn.decomposition import PCA
from sklearn.feature_extraction.text import TfidfVectorizer

from deixis.corpus import TrainingSet, open_corpus, training_set
from deixis.errors import DeixisError, InputError
from deixis.text import featurizers as room
from deixis.text import vector_files
from deixis.text.featurizers import (
    TextRecipe,
    TokenIds,
    content_words,
    fit_text_features,
    load_text_features,
    text_features,
)
from deixis.text.fisher import FisherVectors
from deixis.text.tokens import tokens_of_captions, tokens_of_phrases
from deixis.text.vector_features import FisherFeatures, MeanVectors
from deixis.text.vector_files import StoredVectors
from deixis.text.word_vectors import WordVectors

RECIPES = [
    TextRecipe("hglmm", centres=3),
    TextRecipe("hglmm", centres=3, pca=7),
    TextRecipe("gmm+hglmm", centres=3),
    TextRecipe("gmm+hglmm", centres=3, pca=7),
    TextRecipe("mean"),
    TextRecipe("tfidf", minimum_count=2),
    TextRecipe("tokens", minimum_count=2),
]


@pytest.fixture(scope="module")
def training() -> TrainingSet:
    chosen = training_set(open_corpus("scenes"))
    return TrainingSet(chosen.corpus.with_images(chosen.corpus.images[:60]))


@pytest.fixture(scope="module")
def captions(training: TrainingSet) -> list[tuple[str, ...]]:
    return tokens_of_captions(training)


@pytest.fixture(scope="module")
def unseen() -> list[tuple[str, ...]]:
    """Captions of the validation split, a phrase, a text of nothing known, and one of nothing."""
    images = open_corpus("scenes").split("val").images[:10]
    texts = tokens_of_captions(images)
    return [*texts, ("a", "zeppelin", "!"), ("a", "red-striped", "ball"), ("?",), ()]


@pytest.fixture(scope="module")
def vectors(captions: list[tuple[str, ...]], unseen: list[tuple[str, ...]]) -> WordVectors:
    words = content_words([*captions, *unseen, ("red", "striped")])
    # Some words of both have no vector.
    rows = {word: row for row, word in enumerate(words) if row % 11 and "-" not in word}
    table = np.random.default_rng(0).laplace(size=(len(words), 6)).astype(np.float32)
    return WordVectors(table, rows.get, source="generated")


def made(
    recipe: TextRecipe, captions: list[tuple[str, ...]], unseen: list[tuple[str, ...]], vectors: WordVectors
) -> room.TextFeatures:
    return fit_text_features(recipe, captions, words=content_words(unseen), vectors=vectors, device="cpu")


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_the_files_give_the_same_numbers_without_word_vectors(
    recipe: TextRecipe,
    captions: list[tuple[str, ...]],
    unseen: list[tuple[str, ...]],
    vectors: WordVectors,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fitted = made(recipe, captions, unseen, vectors)
    fitted.save(tmp_path)
    monkeypatch.setattr(vector_files, "spacy_vectors", _none_installed)
    loaded = load_text_features(tmp_path, device="cpu")
    assert (loaded.recipe, loaded.dim) == (recipe, fitted.dim)
    for texts in (captions, unseen):
        ours = loaded.transform(texts)
        np.testing.assert_array_equal(ours, fitted.transform(texts))
        np.testing.assert_array_equal(np.concatenate(list(loaded.stream(texts))), ours)
        assert len(ours) == len(texts)
        assert ours.dtype == (np.int64 if recipe.kind == "tokens" else np.float32)
        if recipe.kind != "tokens":
            assert ours.shape[1] == loaded.dim


def test_numbers_are_those_of_the_estimators(
    captions: list[tuple[str, ...]], unseen: list[tuple[str, ...]], vectors: WordVectors
) -> None:
    fisher = FisherVectors(vectors, 3, random_state=0).fit(captions)
    whole = made(RECIPES[0], captions, unseen, vectors).transform(unseen)
    np.testing.assert_array_equal(whole, fisher.transform(unseen))
    projected = PCA(7).fit(fisher.transform(captions)).transform(fisher.transform(unseen))
    ours = made(RECIPES[1], captions, unseen, vectors).transform(unseen)
    np.testing.assert_allclose(np.abs(ours), np.abs(projected), atol=2e-3)
    mean = made(RECIPES[4], captions, unseen, vectors).transform(unseen)
    np.testing.assert_array_equal(mean, MeanVectors(vectors).transform(unseen))
    tfidf = TfidfVectorizer(analyzer=lambda tokens: tokens, min_df=2).fit(captions)
    np.testing.assert_allclose(
        made(RECIPES[5], captions, unseen, vectors).transform(unseen), tfidf.transform(unseen).toarray(), atol=1e-6
    )


def test_two_mixtures_give_both_vectors_at_unit_length(
    captions: list[tuple[str, ...]], unseen: list[tuple[str, ...]], vectors: WordVectors
) -> None:
    parts = [
        FisherVectors(vectors, 3, family=family, random_state=0).fit(captions) for family in ("gaussian", "hybrid")
    ]
    ours = made(RECIPES[2], captions, unseen, vectors).transform(unseen)
    expected = np.concatenate([part.transform(unseen) for part in parts], axis=1) / np.sqrt(2)
    np.testing.assert_allclose(ours, expected, atol=1e-6)
    lengths = np.linalg.norm(ours, axis=1)
    np.testing.assert_allclose(lengths[lengths > 0], 1, atol=1e-5)


def test_word_ids_are_padded_and_unknown_words_share_one(captions: list[tuple[str, ...]]) -> None:
    fitted = fit_text_features(TextRecipe("tokens"), captions)
    assert isinstance(fitted, TokenIds)
    texts = [("a", "zeppelin"), captions[0][:4], ()]
    ids = fitted.transform(texts)
    assert ids.shape == (3, 4)
    assert ids[0].tolist() == [fitted.vocabulary.encode(("a",))[0], 1, 0, 0]
    assert fitted.vocabulary.decode(ids[1].tolist()) == captions[0][:4]
    assert not ids[2].any()
    assert ids.max() < fitted.dim


def test_the_cache_needs_word_vectors_once(
    training: TrainingSet,
    unseen: list[tuple[str, ...]],
    vectors: WordVectors,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path))
    monkeypatch.setattr(vector_files, "spacy_vectors", lambda: vectors)
    first = text_features(RECIPES[0], training, also=unseen, device="cpu")
    monkeypatch.setattr(vector_files, "spacy_vectors", _none_installed)
    again = text_features(RECIPES[0], training, also=unseen, device="cpu")
    np.testing.assert_array_equal(again.transform(unseen), first.transform(unseen))
    # Principal components are fitted on top of the mixture that is there.
    reduced = text_features(RECIPES[1], training, also=unseen, device="cpu")
    whole = made(RECIPES[1], tokens_of_captions(training), unseen, vectors)
    np.testing.assert_array_equal(reduced.transform(unseen), whole.transform(unseen))
    assert len(list((tmp_path / "text").iterdir())) == 2
    # Words that were never met need the word vectors again.
    with pytest.raises(DeixisError, match="no word vectors"):
        text_features(RECIPES[0], training, also=[("zebra",)])


def test_words_met_later_are_added(
    training: TrainingSet,
    unseen: list[tuple[str, ...]],
    vectors: WordVectors,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path))
    monkeypatch.setattr(vector_files, "spacy_vectors", lambda: vectors)
    # Of these words, those that the captions lack are unknown at first.
    before = text_features(RECIPES[4], training).transform(unseen)
    after = text_features(RECIPES[4], training, also=unseen).transform(unseen)
    np.testing.assert_array_equal(after, MeanVectors(vectors).transform(unseen))
    assert not np.array_equal(before, after)
    # Components are of Fisher vectors: a recipe whose kind was set to another keeps its number, which says nothing.
    other = text_features(msgspec.structs.replace(RECIPES[4], pca=6000), training, also=unseen)
    np.testing.assert_array_equal(other.transform(unseen), after)
    monkeypatch.setattr(vector_files, "spacy_vectors", _none_installed)
    np.testing.assert_array_equal(text_features(RECIPES[4], training, also=unseen).transform(unseen), after)


def test_other_settings_or_captions_are_other_features(
    training: TrainingSet, vectors: WordVectors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path))
    fewer = TrainingSet(training.corpus.with_images(training.corpus.images[:30]))
    sizes = {
        (recipe.minimum_count, len(chosen)): text_features(recipe, chosen).dim
        for recipe in (TextRecipe("tokens"), TextRecipe("tokens", minimum_count=5))
        for chosen in (training, fewer)
    }
    assert len(list((tmp_path / "text").iterdir())) == 4
    assert sizes[1, 60] > sizes[1, 30] > sizes[5, 30]


def test_another_file_of_the_same_name_is_other_features(
    training: TrainingSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same size too, and whether or not new words are met; where the file is gone, what was kept is used."""
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "vectors.txt"
    recipe, text = TextRecipe("mean", vectors=str(file)), [("man",)]
    words = content_words(tokens_of_captions(training))

    def write(number: int, more: str = "") -> None:
        file.write_text("".join(f"{word} {number} 1\n" for word in (*words, *more.split())))

    write(3)
    assert text_features(recipe, training).transform(text).tolist() == [[3, 1]]
    write(4)
    assert text_features(recipe, training).transform(text).tolist() == [[4, 1]]
    write(5, "zebra")
    both = text_features(recipe, training, also=[("zebra",)])
    assert both.transform([("man",), ("zebra",)]).tolist() == [[5, 1], [5, 1]]
    file.unlink()
    assert text_features(recipe, training, also=[("zebra",)]).transform(text).tolist() == [[5, 1]]


def test_words_kept_beside_their_vectors_are_still_read(vectors: WordVectors, tmp_path: Path) -> None:
    kept = StoredVectors.of(vectors, ["man", "dog", "zeppelin"])
    kept.save(tmp_path)
    with safetensors.safe_open(tmp_path / "words.safetensors", "numpy") as file:
        about, table = file.metadata(), file.get_tensor("vectors")
    (tmp_path / "words.json").write_text(about.pop("words"))
    safetensors.numpy.save_file({"vectors": table}, tmp_path / "words.safetensors", about)
    again = StoredVectors.load(tmp_path)
    assert again.not_looked_up(["man", "zeppelin", "cat"]) == ["cat"]
    np.testing.assert_array_equal(again.look_up(["dog"])[0], kept.look_up(["dog"])[0])


def test_kept_vectors_are_those_of_the_whole_table(vectors: WordVectors, unseen: list[tuple[str, ...]]) -> None:
    words = content_words(unseen)
    kept = StoredVectors.of(vectors, words[:20])
    assert kept.not_looked_up(words) == words[20:]
    more = kept.with_words(vectors, words)
    assert more.not_looked_up(words) == []
    array, found = vectors.look_up(words)
    ours, ours_found = more.look_up(words)
    assert 0 < found.sum() < len(found)
    np.testing.assert_array_equal(ours_found, found)
    np.testing.assert_array_equal(ours, array)
    assert kept.source == more.source == "generated"


def test_damaged_files_are_named(
    captions: list[tuple[str, ...]], unseen: list[tuple[str, ...]], vectors: WordVectors, tmp_path: Path
) -> None:
    fitted = made(RECIPES[0], captions, unseen, vectors)
    fitted.save(tmp_path)
    for name in ("words.safetensors", "fisher.safetensors", "recipe.json"):
        path = tmp_path / name
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2])
        with pytest.raises(InputError, match=name):
            load_text_features(tmp_path)
        path.write_bytes(data)
    assert isinstance(load_text_features(tmp_path), FisherFeatures)
    fit_text_features(TextRecipe("tfidf"), captions).save(tmp_path / "tfidf")
    (tmp_path / "tfidf" / "idf.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match=r"idf\.safetensors"):
        load_text_features(tmp_path / "tfidf")


def test_more_components_than_captions_are_refused(captions: list[tuple[str, ...]], vectors: WordVectors) -> None:
    with pytest.raises(DeixisError, match=r"text\.pca = 6000"):
        fit_text_features(TextRecipe("hglmm", centres=3, pca=6000), captions, vectors=vectors)
    with pytest.raises(DeixisError, match="no captions"):
        fit_text_features(TextRecipe("tokens"), [])


def _none_installed() -> WordVectors:
    raise DeixisError("no word vectors are installed")


def test_components_can_be_fitted_to_the_phrases_of_the_training_captions(
    training: TrainingSet, vectors: WordVectors, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DEIXIS_CACHE", str(tmp_path))
    monkeypatch.setattr("deixis.text.vector_features.named_vectors", lambda name: vectors)
    recipe = TextRecipe("hglmm", centres=3, pca=4, pca_from="phrases")
    fitted = text_features(recipe, training, device="cpu")
    phrases = tokens_of_phrases(training)
    assert len(set(phrases)) == len(phrases) > 4
    raw = text_features(TextRecipe("hglmm", centres=3), training, device="cpu").transform(phrases)
    expected = PCA(4).fit_transform(raw.astype(np.float16).astype(np.float64))
    np.testing.assert_allclose(np.abs(fitted.transform(phrases)), np.abs(expected), atol=2e-3)
    by_captions = text_features(TextRecipe("hglmm", centres=3, pca=4), training, device="cpu")
    assert not np.allclose(np.abs(by_captions.transform(phrases)), np.abs(expected), atol=2e-3)

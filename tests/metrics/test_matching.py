"""A matcher's results promise: the figures of the bare protocols, fed by features and tokens, and complete."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deixis.corpus import Corpus, open_corpus
from deixis.corpus.boxes import box_array, iou_matrix, merge
from deixis.features.store import FeatureStore
from deixis.metrics import protocols as matching
from deixis.metrics.localization import PhraseQuery, evaluate_localization
from deixis.metrics.phrase_detection import evaluate_average_precision
from deixis.metrics.protocols import Pictures
from deixis.metrics.results import Recipe, load, save
from deixis.model import ImageFeatures, Localized, Tokens, store_images
from deixis.text.tokens import tokens_of, tokens_of_captions
from tests.stores import make_store, random_boxes

PROVENANCE = {"backbone": "efficientnet-lite2", "regions": {"boxes": "edge-boxes", "saw_boxes": False, "count": 30}}


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    whole = open_corpus("scenes")
    return whole.with_images(whole.split("val").images[:30])


@pytest.fixture(scope="module")
def store(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    return make_store(tmp_path_factory.mktemp("store"), corpus, random_boxes(30), provenance=PROVENANCE)


@pytest.fixture(scope="module")
def pictures(corpus: Corpus, store: FeatureStore) -> Pictures:
    return Pictures(corpus, "val", store, learned_from_boxes=True)


class Hashing:
    """Random but constant: a text or picture is embedded by its own content, a region by its features."""

    def __init__(self, dim: int = 8) -> None:
        self.dim = dim

    def vector(self, content: Any) -> np.ndarray:
        random = np.random.default_rng(np.frombuffer(repr(content).encode(), np.uint8).tolist())
        drawn = random.normal(size=self.dim)
        return drawn / np.linalg.norm(drawn)

    def embed_images(self, images: Sequence[ImageFeatures]) -> np.ndarray:
        return np.stack([self.vector(image.image.tolist()) for image in images])

    def embed_texts(self, texts: Sequence[Tokens]) -> np.ndarray:
        return np.stack([self.vector(tuple(text)) for text in texts])

    def localize(self, image: ImageFeatures, phrases: Sequence[Tokens]) -> Localized:
        assert image.regions is not None
        assert image.boxes is not None
        return Localized(image.boxes, self.embed_texts(phrases) @ np.asarray(image.regions, np.float64).T)

    def presence(self, image: ImageFeatures, phrases: Sequence[Tokens]) -> np.ndarray:
        return self.localize(image, phrases).scores.sum(axis=1)


class Scoring:
    """The same scores, one pair at a time."""

    def __init__(self) -> None:
        self._inner = Hashing()

    def score(self, images: Sequence[ImageFeatures], texts: Sequence[Tokens]) -> np.ndarray:
        return self._inner.embed_images(images) @ self._inner.embed_texts(texts).T


def best_rank(scores: np.ndarray, right: np.ndarray) -> int:
    return 1 + int(np.sum(scores[~right] >= scores[right].max()))


@pytest.mark.parametrize("matcher", [Hashing(), Scoring()], ids=["encodes", "scores"])
def test_retrieval_by_brute_force(matcher: Any, corpus: Corpus, store: FeatureStore, pictures: Pictures) -> None:
    result = matching.retrieval(matcher, pictures, seed=3, recipe=Recipe("some", "hash"), rows=["two-branch/table2/x"])
    texts = [(tokens_of(caption), number) for number, image in enumerate(corpus) for caption in image.captions]
    owners = np.array([number for _, number in texts])
    inner = Hashing()
    features = list(store_images(store, [image.id for image in corpus]))
    scores = inner.embed_images(features) @ inner.embed_texts([tokens for tokens, _ in texts]).T
    forward = [best_rank(scores[number], owners == number) for number in range(len(corpus))]
    back = [best_rank(scores[:, column], np.arange(len(corpus)) == owner) for column, owner in enumerate(owners)]
    figures: Any = result.metrics
    for name, ranks in (("image_to_text", forward), ("text_to_image", back)):
        for k in (1, 5, 10):
            assert figures[name][f"r@{k}"] == pytest.approx(100 * np.mean(np.array(ranks) <= k))
        assert figures[name]["median_rank"] == np.median(ranks)
    assert result.counts == {"images": 30, "captions": len(texts)}
    assert (result.seed, result.recipe, result.rows) == (3, Recipe("some", "hash"), ("two-branch/table2/x",))
    assert result.corpus is not None
    assert result.corpus.split_hash == corpus.split_hash("val")


def test_a_matcher_with_scores_and_embeddings_is_asked_for_scores(pictures: Pictures) -> None:
    class Both(Hashing):
        def score(self, images: Sequence[ImageFeatures], texts: Sequence[Tokens]) -> np.ndarray:
            return Scoring().score(images, texts)

        def embed_images(self, images: Sequence[ImageFeatures]) -> np.ndarray:
            raise AssertionError("asked for embeddings")

    assert matching.retrieval(Both(), pictures).metrics == matching.retrieval(Scoring(), pictures).metrics


def test_sentences_by_brute_force(corpus: Corpus, pictures: Pictures) -> None:
    result = matching.sentence_retrieval(Hashing(), pictures)
    texts = tokens_of_captions(corpus)
    owners = np.array([number for number, image in enumerate(corpus) for _ in image.captions])
    encoded = Hashing().embed_texts(texts)
    ranks = []
    for number in range(len(texts)):
        others = np.arange(len(texts)) != number
        # Equal captions have equal embeddings: up to rounding they tie.
        scores = (encoded @ encoded[number]).round(9)
        ranks.append(best_rank(scores[others], (owners == owners[number])[others]))
    figures: Any = result.metrics["sentence_to_sentence"]
    assert figures["r@1"] == pytest.approx(100 * np.mean(np.array(ranks) <= 1))
    assert figures["r@10"] == pytest.approx(100 * np.mean(np.array(ranks) <= 10))


def test_localization_is_that_of_the_bare_protocols(corpus: Corpus, store: FeatureStore, pictures: Pictures) -> None:
    matcher = Hashing()
    result = matching.localization(matcher, pictures, recall_at=(1, 5, 10, 30), precision=True)

    def localize(image: Any, queries: Sequence[PhraseQuery]) -> Localized:
        texts = [tuple(query.text.lower().split()) for query in queries]
        return Localized(store.boxes(image.id), matcher.embed_texts(texts) @ store.regions(image.id).astype(float).T)

    expected = evaluate_localization(corpus.images, localize, recall_at=(1, 5, 10, 30))
    by_phrase = evaluate_average_precision(corpus.images, localize, unit="phrase")
    figures: Any = result.metrics["localization"]
    assert figures["overall"]["r@30"] == pytest.approx(expected.overall.upper_bound)
    assert figures["overall"]["ap_nms"] == pytest.approx(by_phrase.mean)
    assert figures["overall"]["r@5"] == pytest.approx(expected.overall.recall[5])
    for name, row in expected.by_type.items():
        assert figures["by_type"][name]["r@1"] == pytest.approx(row.recall[1])
        assert figures["by_type"][name]["ap_nms"] == pytest.approx(by_phrase.by_type[name])
    for name, row in figures["by_phrase"].items():
        assert row["ap_nms"] == pytest.approx(by_phrase.by_phrase[name])
    blind = figures["text_blind"]
    assert set(blind) == {"whole_image", "largest_proposal", "proposal_order"}
    # Whatever the order, the proposals have the same upper bound.
    assert blind["largest_proposal"]["r@30"] == blind["proposal_order"]["r@30"] == figures["overall"]["r@30"]
    assert blind["proposal_order"]["r@1"] < blind["proposal_order"]["r@5"] < blind["proposal_order"]["r@30"]
    assert result.counts["phrases"] == expected.phrases
    assert result.counts["without_box"] == expected.without_box > 0


def test_a_model_that_knows_the_boxes_reaches_the_upper_bound(corpus: Corpus, pictures: Pictures) -> None:
    by_size_and_boxes = {}
    for image in corpus:
        gold: dict[tuple[str, ...], Any] = {}
        for caption in image.captions:
            for phrase in caption.phrases:
                if image.chain_boxes(phrase.chain):
                    text = tuple(caption.phrase_text(phrase).lower().split())
                    gold.setdefault(text, []).append(merge(box_array(image.chain_boxes(phrase.chain))))
        by_size_and_boxes[pictures.features(image).image.tobytes()] = gold

    class Knowing:
        def localize(self, image: ImageFeatures, phrases: Sequence[Tokens]) -> Localized:
            own = by_size_and_boxes[image.image.tobytes()]
            assert image.boxes is not None
            scores = [iou_matrix(np.array(own[tuple(text)]), image.boxes).max(axis=0) for text in phrases]
            return Localized(image.boxes, np.array(scores).reshape(len(phrases), len(image.boxes)))

    result = matching.localization(Knowing(), pictures)
    overall: Any = result.metrics["localization"]["overall"]  # type: ignore[index]
    # One string may name two things in a picture, and is then found once.
    assert overall["upper_bound"] - 3 < overall["r@1"] <= overall["upper_bound"]
    assert overall["r@10"] == pytest.approx(overall["upper_bound"], abs=1)
    boxes = result.box_supervision
    assert boxes is not None
    assert (boxes.regions, boxes.upper_bound) == (30, overall["upper_bound"])


def test_what_saw_boxes_is_reported(corpus: Corpus, store: FeatureStore, tmp_path: Path) -> None:
    made = dict(PROVENANCE, regions={"boxes": "learned", "saw_boxes": True, "count": 5})
    learned = make_store(tmp_path / "store", corpus, random_boxes(5), provenance=made)
    pictures = Pictures(corpus, "val", store, regions=learned, learned_from_boxes=False)
    result = matching.presence(Hashing(), pictures)
    boxes = result.box_supervision
    assert boxes is not None
    assert (boxes.backbone, boxes.proposals) == (False, True)
    assert boxes.statement == (
        "backbone efficientnet-lite2: saw no drawn box; proposals learned: learned from drawn boxes; "
        "matcher: saw no drawn box"
    )
    assert result.protocol.parameters["region_features"] == learned.fingerprint[:16]
    save(result, tmp_path / "presence.json")
    assert load(tmp_path / "presence.json") == result
    assert 0 < result.metrics["presence"]["pooled_ap"] < 100  # type: ignore[index, operator]


def test_regions_come_from_the_store_that_has_them(corpus: Corpus, store: FeatureStore, tmp_path: Path) -> None:
    whole = make_store(tmp_path, corpus, channels=3)
    image = corpus.images[4]
    (both,) = store_images(whole, [image.id], regions=store)
    assert both.image.shape == (3,)
    assert both.regions is not None
    assert both.regions.shape == (len(store.boxes(image.id)), 8)
    assert both.size == (image.width, image.height)
    (alone,) = store_images(whole, [image.id])
    assert alone.regions is alone.boxes is None

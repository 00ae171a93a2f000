"""What a model can be asked: one class for every model, trained here or elsewhere. `deixis.load_model` opens one.

Pictures are paths, PIL pictures in RGB, or `ImageFeatures`, the row of a feature store (`store_images`). Texts are
strings, or lower-case tokens (`deixis.text.tokens.tokens_of`); sentences and phrases alike. Answers are NumPy arrays
and the small records below. Scores are higher for what fits better.

A model implements some of the methods; `abilities` names them, and the others raise `CannotError`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import msgspec
import numpy as np

from deixis.errors import CannotError, DeixisError
from deixis.text.phrase_finding import find_phrases, token_places, trimmed
from deixis.text.tokens import tokenize, tokens_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from deixis.corpus.records import Caption
    from deixis.features.store import FeatureStore

#: A sentence or a phrase, split and in lower case.
Tokens = Sequence[str]
Text = str | Tokens
#: x1, y1, x2, y2 in the original picture's pixels.
Box = tuple[float, float, float, float]
#: The methods that a model may have.
ABILITIES = (
    "embed_images",
    "embed_texts",
    "score",
    "localize",
    "ground",
    "describe",
    "describe_regions",
    "align",
    "concepts",
    "log_likelihood",
)


@dataclass(frozen=True, eq=False)
class ImageFeatures:
    """Stored features of one picture; rows of `regions` and `boxes` belong together."""

    #: The whole picture's vector, `(channels,)`, float16 or float32.
    image: NDArray[Any]
    #: `(regions, channels)`, or None where the store has no regions.
    regions: NDArray[Any] | None
    #: `(regions, 4)`: x1, y1, x2, y2 in the original picture's pixels.
    boxes: NDArray[Any] | None
    #: Width and height of the original picture.
    size: tuple[float, float]
    #: The whole picture's vector computed as the regions' are, `(channels,)`; None where `image` is that.
    whole: NDArray[Any] | None = None


#: A path, a PIL picture in RGB, `ImageFeatures`, or what `Model.look` returned.
ImageInput = Any


class Mention(tuple[str, ...]):
    """The tokens of a phrase, which also knows its sentence: tokens `start` to `end` (exclusive) of it.

    A model that reads phrases by themselves takes it as any other tokens.

    >>> mention = Mention(("a", "red", "car"), 1, 3)
    >>> mention == ("red", "car"), mention.sentence
    (True, ('a', 'red', 'car'))
    """

    sentence: Tokens
    start: int
    end: int

    def __new__(cls, sentence: Tokens, start: int, end: int) -> Mention:
        mention = super().__new__(cls, tuple(sentence[start:end]))
        mention.sentence, mention.start, mention.end = tuple(sentence), start, end
        return mention

    def __getnewargs__(self) -> tuple[Tokens, int, int]:
        return self.sentence, self.start, self.end

    @classmethod
    def of(cls, phrase: Tokens) -> Mention:
        """The phrase itself, or a phrase that is a sentence of its own."""
        return phrase if isinstance(phrase, cls) else cls(phrase, 0, len(phrase))


class Localized(NamedTuple):
    """Boxes in the original picture's pixels, and how well each fits each phrase."""

    boxes: NDArray[Any]  # (regions, 4), or (phrases, regions, 4) where each phrase has boxes of its own
    scores: NDArray[Any]  # (phrases, regions)


class Grounding(msgspec.Struct, frozen=True):
    """A phrase and where it is in the picture.

    `start` and `end` (exclusive) are its characters in the sentence as given. What `score` means is up to the model:
    with deixis-base, how likely (0 to 1) the box is the right one if the thing is in the picture at all. `presence` is
    how likely (0 to 1) it is in the picture; None if the model has no estimate. `boxes` are those of the single things
    that a plural names ("two dogs"), where the model distinguishes them; otherwise `box` alone.
    """

    phrase: str
    start: int
    end: int
    box: Box
    score: float
    presence: float | None = None
    boxes: tuple[Box, ...] = ()

    def __post_init__(self) -> None:
        if not self.boxes:
            msgspec.structs.force_setattr(self, "boxes", (self.box,))

    @property
    def is_there(self) -> bool:
        """Whether it is probably in the picture; true if the model has no estimate."""
        return self.presence is None or self.presence >= 0.5

    @property
    def presence_percent(self) -> str:
        """In percent, rounded down, so that an absent phrase is below 50%. Empty if the model has no estimate."""
        return "" if self.presence is None else f"{math.floor(100 * self.presence)}%"


class Description(msgspec.Struct, frozen=True, omit_defaults=True):
    """A text about a picture or, with a `box`, about a region. Scores compare within one picture and one method."""

    text: str
    score: float
    by: Literal["retrieval", "generation"]
    box: Box | None = None

    @property
    def tokens(self) -> tuple[str, ...]:
        return tuple(self.text.split(" ")) if self.text else ()

    @property
    def sentence(self) -> str:
        """The text as people write it.

        >>> Description("a dog , not the man 's , does n't run .", 0.0, "generation").sentence
        "A dog, not the man's, doesn't run."
        """
        text = re.sub(r"\s+(?=[.,;:!?]|(?:n't|'(?:s|m|d|re|ve|ll))(?!\w))", "", self.text.strip())
        return text[:1].upper() + text[1:] + ("" if not text or text[-1] in ".!?" else ".")


class AlignedSnippet(msgspec.Struct, frozen=True):
    """Tokens `start` to `end` (exclusive) of a sentence, and the region that they are aligned with.

    `score` is the sum of the words' scores with that region. A phrase that was counted ("three people") has several
    regions.
    """

    text: str
    start: int
    end: int
    boxes: tuple[Box, ...]
    score: float
    #: Aligned with the picture as a whole.
    whole: bool


class Alignment(msgspec.Struct, frozen=True):
    """A sentence as snippets; `score` is that of the picture with the whole sentence."""

    tokens: tuple[str, ...]
    score: float
    beta: float
    temperature: float
    snippets: tuple[AlignedSnippet, ...]


class Concept(msgspec.Struct, frozen=True, omit_defaults=True):
    """A concept, how confident the model is that the picture shows it, and where; no box: the picture as a whole."""

    concept: str
    part: str
    confidence: float
    box: Box | None
    #: The word that was asked for, which stands for the concept.
    word: str = ""


class Model:
    """Base class of all models; it loads nothing.

    Subclasses implement what they can. `score` comes with embeddings (their cosine) and `ground` with `localize` (the
    best box). An instance that cannot do what its class can names it in `lacks`.

    >>> class Lengths(Model):
    ...     def score(self, images, texts):
    ...         return np.array([[len(text) for text in texts] for _ in images])
    >>> sorted(Lengths().abilities)
    ['score']
    """

    #: What it was opened as: "deixis-base", "runs/bi".
    name: str = ""
    lacks: frozenset[str] = frozenset()
    #: Whether `localize` takes stored features; else it looks at the picture itself.
    localizes_features: bool = False
    _implied: ClassVar = {"score": ("embed_images", "embed_texts"), "ground": ("localize",)}

    @property
    def abilities(self) -> frozenset[str]:
        """The names of the methods that this model has."""
        implemented = {name for name in ABILITIES if getattr(type(self), name) is not getattr(Model, name)} - self.lacks
        implemented |= {
            name for name, needed in self._implied.items() if implemented.issuperset(needed) and name not in self.lacks
        }
        return frozenset(implemented)

    @property
    def hashes(self) -> dict[str, str]:
        """SHA-256 of its weights by name, for results; empty where they are not known."""
        return {}

    def cannot(self, ability: str) -> CannotError:
        """The error of a method that this model does not have."""
        able = ", ".join(name for name in ABILITIES if name in self.abilities) or "nothing"
        verb = {"concepts": "list concepts", "log_likelihood": "compute log_likelihood"}.get(ability, ability)
        return CannotError(f"{self.name or type(self).__name__} cannot {verb}; it can: {able}")

    def look(self, image: ImageInput) -> Any:
        """What the model computes of a picture before anything is asked.

        Pass it in the picture's place to ask several things of one picture without computing that again.
        """
        return image

    def embed_images(self, images: Sequence[ImageInput]) -> NDArray[Any]:
        """Unit embeddings `(images, dim)`."""
        raise self.cannot("embed_images")

    def embed_texts(self, texts: Sequence[Text]) -> NDArray[Any]:
        """Unit embeddings `(texts, dim)`; zeros for a text of which the model knows no word."""
        raise self.cannot("embed_texts")

    def score(self, images: Sequence[ImageInput], texts: Sequence[Text]) -> NDArray[Any]:
        """How well texts fit pictures, `(images, texts)`, comparable over all of them; by default cosines."""
        if not {"embed_images", "embed_texts"} <= self.abilities:
            raise self.cannot("score")
        return np.asarray(self.embed_images(images) @ self.embed_texts(texts).T)

    def score_batches(self, batches: Iterable[Sequence[ImageInput]], texts: Sequence[Text]) -> Iterator[NDArray[Any]]:
        """`score` of many pictures with the same texts, in batches; a model that can reads the texts once for all."""
        for images in batches:
            yield self.score(images, texts)

    def score_texts(self, image: ImageInput, texts: Sequence[Text]) -> NDArray[Any]:
        """How well texts fit one picture, `(texts,)`: which of them is true of it; not to compare pictures by.

        By default their score. deixis-base also looks for their phrases in the picture.
        """
        (row,) = np.asarray(self.score([image], texts))
        return np.asarray(row)

    def localize(self, image: ImageInput, phrases: Sequence[Tokens]) -> Localized:
        """All candidate boxes of a picture with their scores for each phrase; compare scores within a phrase only.

        Args:
            phrases: tokens; a `Mention` is read in its sentence by models that do so.
        """
        raise self.cannot("localize")

    def proposals(self, image: ImageInput) -> NDArray[Any] | None:
        """The boxes `(regions, 4)` that `localize` chooses from, before a phrase moves them, the most promising first.

        None if the model makes no proposals of its own.
        """
        return None

    def ground(self, image: ImageInput, phrases: str | Sequence[Text]) -> list[Grounding]:
        """The best box of each phrase.

        Args:
            phrases: a sentence, whose phrases are found in it; or phrases, each taken as it is.
        """
        if "localize" not in self.abilities:
            raise self.cannot("ground")
        asked = asked_phrases(phrases)
        boxes, scores = self.localize(image, [phrase.mention for phrase in asked])
        if not scores.shape[1]:
            raise DeixisError("the picture has no regions to choose from")
        best = np.asarray(scores).argmax(1)
        boxes = np.broadcast_to(boxes, (len(asked), *boxes.shape[-2:]))
        return [
            Grounding(phrase.text, phrase.start, phrase.end, as_box(phrase_boxes[index]), float(row[index]))
            for phrase, phrase_boxes, row, index in zip(asked, boxes, scores, best.tolist(), strict=True)
        ]

    def describe(self, image: ImageInput, count: int = 3) -> list[Description]:
        """At most `count` sentences about a picture, best first."""
        raise self.cannot("describe")

    def describe_all(self, images: Sequence[ImageInput], count: int = 1) -> list[list[Description]]:
        """As `describe`, for many pictures; models that generate text describe them together."""
        return [self.describe(image, count) for image in images]

    def describe_regions(self, image: ImageInput, count: int = 3, most: int | None = None) -> list[list[Description]]:
        """At most `count` texts for each region of a picture, best first.

        Args:
            most: at most so many regions, those that are described best and overlap little. None: all, in their order.
        """
        raise self.cannot("describe_regions")

    def align(
        self,
        image: ImageInput,
        sentence: Text,
        *,
        beta: float | None = None,
        temperature: float | None = None,
        counted: Sequence[tuple[int, int]] = (),
    ) -> Alignment:
        """The region of every word of a sentence, as snippets of neighbouring words with one region.

        Args:
            beta: what neighbouring words of one region add; None: as the model was trained.
            temperature: 0: the single best path (Viterbi). Above 0: the region with the largest expected overlap under
                the chain posterior. None: as the model was trained.
            counted: phrases, as spans of tokens; one with a number ("three people") gets as many different regions.
        """
        raise self.cannot("align")

    def concepts(self, image: ImageInput, words: Sequence[str] | None = None) -> list[Concept]:
        """All concepts of the model, the one it is most confident of first, each where it is most confident.

        Args:
            words: instead, the concepts that these words stand for, in their order; words that stand for none are left
                out.
        """
        raise self.cannot("concepts")

    def log_likelihood(self, images: Sequence[ImageInput], texts: Sequence[Text]) -> NDArray[Any]:
        """log p(text | picture), `(images, texts)`, the end of each text included."""
        raise self.cannot("log_likelihood")

    def unknown_words(self, text: Text) -> list[str]:
        """The words of a text that the model has never seen."""
        return []

    def prepare_texts(self, texts: Sequence[Tokens], *, keep: bool = False) -> None:
        """Compute at once what is needed of texts that will be asked for with many pictures.

        Args:
            keep: also in the cache folder, for the next time.
        """

    def training_phrases(self) -> list[tuple[str, ...]]:
        """The phrases of the captions that it was trained on; a model that did not keep them raises a `DeixisError`."""
        raise DeixisError(f"{self.name} kept no phrases of its training captions; give some with --bank FILE")


def abilities_of(model: object) -> frozenset[str]:
    """The abilities of a model; of any other object, the names of `ABILITIES` that it has as methods."""
    if isinstance(model, Model):
        return model.abilities
    return frozenset(name for name in ABILITIES if callable(getattr(model, name, None)))


def name_of(model: object) -> str:
    """The name of a model, or of its class."""
    return str(getattr(model, "name", "") or type(model).__name__)


def has_own_score(model: object) -> bool:
    """Whether a model scores pairs in another way than by the cosine of embeddings."""
    if isinstance(model, Model):
        return "score" in model.abilities and type(model).score is not Model.score
    return "score" in abilities_of(model)


def texts_for(model: object, captions: Sequence[Caption]) -> list[Any]:
    """Captions as a model takes them: a `Model` reads the corpus' own tokens, as in training, other objects strings."""
    return [tokens_of(caption) if isinstance(model, Model) else caption.text for caption in captions]


def score_batches(model: Any, batches: Iterable[Sequence[Any]], texts: Sequence[Any]) -> Iterator[Any]:
    """Scores of the pictures of each batch with all texts, which a `Model` reads once."""
    if isinstance(model, Model):
        return model.score_batches(batches, texts)
    return (model.score(batch, texts) for batch in batches)


class AskedPhrase(NamedTuple):
    """A phrase as models read it, and its text and place (characters) in what was asked."""

    mention: Mention
    text: str
    start: int
    end: int


def asked_phrases(phrases: str | Sequence[Text]) -> list[AskedPhrase]:
    """The phrases of a sentence, or phrases that are given one by one.

    >>> [(each.text, each.start) for each in asked_phrases(["a man", "red shirt!"])]
    [('a man', 0), ('red shirt', 0)]
    """
    if isinstance(phrases, str):
        return _in_sentence(phrases, find_phrases(phrases))
    asked = []
    for phrase in phrases:
        if isinstance(phrase, str):
            asked += _in_sentence(phrase, [trimmed(tokenize(phrase), phrase)])
        else:
            mention = Mention.of(phrase)
            start = sum(len(token) + 1 for token in mention.sentence[: mention.start])
            text = " ".join(mention)
            asked.append(AskedPhrase(mention, text, start, start + len(text)))
    return asked


def _in_sentence(sentence: str, spans: Iterable[tuple[int, int]]) -> list[AskedPhrase]:
    tokens = tokenize(sentence)
    places, words = token_places(sentence, tokens), [token.lower() for token in tokens]
    asked = []
    for first, last in spans:
        start, end = places[first][0], places[last - 1][1]
        asked.append(AskedPhrase(Mention(words, first, last), sentence[start:end], start, end))
    return asked


def as_tokens(text: Text) -> Tokens:
    """Tokens as they are, strings tokenized and in lower case."""
    return tokens_of(text) if isinstance(text, str) else text


def as_box(row: Any) -> Box:
    x1, y1, x2, y2 = (float(side) for side in row)
    return x1, y1, x2, y2


def store_images(
    store: FeatureStore, image_ids: Iterable[str], *, regions: FeatureStore | None = None
) -> Iterator[ImageFeatures]:
    """The features of images as views of a store's files, one at a time: nothing is loaded before it is used.

    Args:
        store: whole-picture vectors, and, unless `regions` is given, regions where it has them.
        image_ids: which; one that is not in the store is a `DeixisError`.
        regions: another store, whose regions are taken.
    """
    vectors, sizes = store["image"], store["size"]
    with_regions = store if regions is None else regions
    has_regions = "regions" in with_regions.plan.arrays
    wholes = None if regions is None else regions["image"]
    for image_id in image_ids:
        row = int(store.numbers([image_id])[0])
        width, height = sizes[row].tolist()
        yield ImageFeatures(
            image=vectors[row],
            regions=with_regions.regions(image_id) if has_regions else None,
            boxes=with_regions.boxes(image_id) if has_regions else None,
            size=(width, height),
            whole=None if wholes is None else wholes[int(with_regions.numbers([image_id])[0])],
        )


def regions_of(image: ImageFeatures) -> tuple[NDArray[Any], NDArray[Any]]:
    """Regions and boxes of an image whose features have them."""
    if image.regions is None or image.boxes is None:
        raise DeixisError("localization needs features of regions; extract them with a recipe that has [regions]")
    return np.asarray(image.regions), np.asarray(image.boxes)

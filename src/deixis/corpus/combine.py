"""Join, concatenate and cut corpora.

All Flickr8k pictures are also in Flickr30k Entities, so `join` can add the phrases, chains and boxes of Entities to the
pictures, captions and splits of Flickr8k.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from deixis.corpus.pictures import CombinedPictures, Pictures
from deixis.corpus.records import Caption, Corpus, Image, Phrase, carried_source_id, make_caption, make_image
from deixis.errors import DeixisError

if TYPE_CHECKING:
    from numpy.random import Generator


@dataclass(frozen=True)
class JoinReport:
    """Result of `join`, with counts of what was matched."""

    corpus: Corpus
    images_matched: int
    images_unmatched: int
    captions_exact: int
    captions_normalized: int
    captions_unmatched: int
    phrases_attached: int
    #: Phrases of unmatched captions, and phrases that begin or end inside a token of the left caption.
    phrases_unattached: int
    boxes_attached: int

    @property
    def counts(self) -> dict[str, int]:
        """All counts by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, int)}


def join(left: Corpus, right: Corpus) -> JoinReport:
    """Add the phrases, chains and boxes of `right` to the images of `left`, which keep pictures, captions and splits.

    Images match by Flickr photo id. Captions match if they have the same tokens, or else the same letters and digits
    ignoring case; in the second case, a phrase is attached only if it begins and ends with a token of the left caption.
    A matched image gets all chains and boxes, and the size of the original picture, to which the boxes refer. Images
    and captions without a match are unchanged, and are counted.

    >>> from deixis.corpus import Caption, Chain, Phrase
    >>> left = Corpus([Image("7_flickr8k", captions=(Caption("A dog runs ."),))])
    >>> annotated = Caption("A dog runs .", phrases=(Phrase(0, 2, chain="1"),))
    >>> right = Corpus([Image("7", captions=(annotated,), chains=(Chain("1"),))])
    >>> join(left, right).corpus.images[0].captions[0].phrases
    (Phrase(start=0, end=2, chain='1', types=()),)
    """
    by_photo: dict[str, Image] = {}
    for image in right:
        if by_photo.setdefault(photo_id(image), image) is not image:
            raise DeixisError(f"{right.name or 'the right corpus'} has photo {photo_id(image)} twice")
    counts: Counter[str] = Counter()
    images = []
    for image in left:
        match = by_photo.get(photo_id(image))
        counts["images_unmatched" if match is None else "images_matched"] += 1
        counts["boxes_attached"] += len(match.boxes) if match else 0
        if match is None:
            counts["captions_unmatched"] += len(image.captions)
        images.append(image if match is None else _joined(image, match, counts))
    corpus = left.with_images(images)
    names = [name for name in JoinReport.__dataclass_fields__ if name != "corpus"]
    return JoinReport(corpus, **{name: counts[name] for name in names})


def concat(*corpora: Corpus, prefixes: Sequence[str] = (), name: str = "") -> Corpus:
    """All images of several corpora, with their pictures.

    Args:
        prefixes: one per corpus, put before its image ids to avoid clashes. A `/` is inserted if two digits would meet,
            so that the photo id stays a separate number.
        name: name of the result; by default the names of the parts, joined by `+`.

    Raises:
        DeixisError: if two images have the same id.

    >>> from deixis.corpus import open_corpus
    >>> scenes = open_corpus("scenes:20")
    >>> len(concat(scenes, scenes, prefixes=["a-", "b-"]))
    40
    """
    if prefixes and len(prefixes) != len(corpora):
        raise DeixisError(f"{len(corpora)} corpora need as many prefixes, not {len(prefixes)}")
    images = []
    sources: dict[str, tuple[Pictures, Image]] = {}
    for corpus, prefix in zip(corpora, prefixes or ("",) * len(corpora), strict=True):
        for image in corpus:
            renamed = msgspec.structs.replace(image, id=_prefixed(prefix, image.id)) if prefix else image
            images.append(renamed)
            if corpus.pictures is not None:
                sources[renamed.id] = (corpus.pictures, image)
    name = name or "+".join(corpus.name for corpus in corpora if corpus.name)
    return Corpus(images, name=name, pictures=CombinedPictures(sources) if sources else None)


def cut(
    corpus: Corpus,
    splits: Sequence[str] = (),
    ids: Iterable[str] | None = None,
    limit: int | None = None,
    generator: Generator | None = None,
) -> Corpus:
    """Part of a corpus: the given splits, the given ids (in that order), and at most the first `limit` images.

    With a `generator`, `limit` images are chosen at random without replacement; they keep their order.

    >>> from deixis.corpus import open_corpus
    >>> cut(open_corpus("scenes:20"), splits=["train"], limit=3)
    <Corpus scenes: 3 images (train: 3)>
    """
    if splits:
        corpus = corpus.split(*splits)
    if ids is not None:
        corpus = corpus.subset(ids)
    if limit is None or limit >= len(corpus):
        return corpus
    if limit < 0:
        raise DeixisError(f"cannot cut a corpus to {limit} images")
    if generator is None:
        return corpus.with_images(corpus.images[:limit])
    chosen = sorted(generator.choice(len(corpus), size=limit, replace=False).tolist())
    return corpus.with_images(corpus.images[index] for index in chosen)


def photo_id(image: Image) -> str:
    """The Flickr photo's id: `source_id`, or the image's own id up to the first `_`."""
    return image.source_id or image.id.partition("_")[0]


def _prefixed(prefix: str, image_id: str) -> str:
    return f"{prefix}/{image_id}" if prefix[-1].isdigit() and image_id[:1].isdigit() else prefix + image_id


def _joined(image: Image, match: Image, counts: Counter[str]) -> Image:
    if image.chains or image.boxes:
        raise DeixisError(f"image {image.id} already has chains, so those of {match.id} cannot be added")
    counts["phrases_unattached"] += sum(len(caption.phrases) for caption in match.captions)
    partners = _pair_captions(image.captions, match.captions)
    captions = []
    for caption, partner in zip(image.captions, partners, strict=True):
        if partner is None:
            counts["captions_unmatched"] += 1
            captions.append(caption)
            continue
        exact = caption.tokens == partner.tokens
        counts["captions_exact" if exact else "captions_normalized"] += 1
        phrases = partner.phrases if exact else _transfer(partner, caption)
        counts["phrases_attached"] += len(phrases)
        counts["phrases_unattached"] -= len(phrases)
        unrelated = caption.unrelated or partner.unrelated
        captions.append(make_caption(caption.text, caption.words, phrases, id=caption.id, unrelated=unrelated))
    return make_image(
        image.id,
        file=image.file,
        width=match.width or image.width,
        height=match.height or image.height,
        split=image.split,
        captions=captions,
        boxes=match.boxes,
        chains=match.chains,
        source_id=carried_source_id(
            image.source_id or match.source_id, (image.id, image.file), (match.id, match.file, match.source_id)
        ),
    )


def _pair_captions(left: Sequence[Caption], right: Sequence[Caption]) -> list[Caption | None]:
    """The right partner of each left caption: by equal tokens first, then by equal letters. Each is used once."""
    partners: list[Caption | None] = [None] * len(left)
    unused = list(right)
    for signature in (lambda caption: caption.tokens, lambda caption: _letters(caption)[0]):
        for position, caption in enumerate(left):
            if partners[position] is None:
                partner = next((other for other in unused if signature(other) == signature(caption)), None)
                if partner is not None:
                    partners[position] = partner
                    unused.remove(partner)
    return partners


def _letters(caption: Caption) -> tuple[str, list[tuple[int, int]]]:
    """The caption's letters and digits as one lower-case string, and the span of each token in it."""
    text, spans = "", []
    for token in caption.tokens:
        start = len(text)
        text += "".join(filter(str.isalnum, token.casefold()))
        spans.append((start, len(text)))
    return text, spans


def _transfer(source: Caption, target: Caption) -> list[Phrase]:
    """The source's phrases as token spans of the target, for phrases that begin and end with a target token."""
    _, source_spans = _letters(source)
    _, target_spans = _letters(target)
    first = {start: token for token, (start, end) in reversed(list(enumerate(target_spans))) if end > start}
    last = {end: token + 1 for token, (start, end) in enumerate(target_spans) if end > start}
    phrases = []
    for phrase in source.phrases:
        start, end = source_spans[phrase.start][0], source_spans[phrase.end - 1][1]
        if start < end and start in first and end in last:
            phrases.append(Phrase(first[start], last[end], phrase.chain, phrase.types))
    return phrases

"""Error analysis of annotations (Flickr30k Entities): chunking errors, coreference errors, images with any error.

The paper found chunking errors in less than 1% of the mentions, coreference errors in less than 1% of the chains, and
an error of some kind in around 8% of the images, by comparing with what the annotations should be. Here the
comparison is with another corpus of the same captions: corrected annotations, or those of other annotators.
"""

from __future__ import annotations

from dataclasses import dataclass

from deixis.corpus import Corpus, Image
from deixis.errors import DeixisError

#: Caption, first token, end token.
Mention = tuple[int, int, int]


@dataclass(frozen=True)
class AnnotationErrors:
    """Counts over the images that both corpora have.

    A mention is wrong if the reference has none with the same tokens, and missing the other way round. A chain is wrong
    if its mentions, those that both have, are not one whole chain of the reference.
    """

    images: int
    mentions: int
    wrong_mentions: int
    missing_mentions: int
    chains: int
    wrong_chains: int
    images_with_errors: int

    def shares(self) -> dict[str, float]:
        """In percent: of mentions (chunking), of chains (coreference), of images (either)."""
        pairs = {
            "chunking_errors": (self.wrong_mentions + self.missing_mentions, self.mentions + self.missing_mentions),
            "coreference_errors": (self.wrong_chains, self.chains),
            "images_with_errors": (self.images_with_errors, self.images),
        }
        return {name: 100 * part / whole if whole else 0.0 for name, (part, whole) in pairs.items()}


def annotation_errors(corpus: Corpus, reference: Corpus) -> AnnotationErrors:
    """Compare the phrases and chains of a corpus with those of a reference; boxes are not compared.

    Raises:
        DeixisError: no image is in both, or an image has other captions in the reference.
    """
    expected = {image.id: image for image in reference}
    counts = [_image_errors(image, expected[image.id]) for image in corpus if image.id in expected]
    if not counts:
        raise DeixisError("the two corpora have no image in common")
    mentions, wrong, missing, chains, wrong_chains = (sum(column) for column in zip(*counts, strict=True))
    with_errors = sum(any(row[index] for index in (1, 2, 4)) for row in counts)
    return AnnotationErrors(len(counts), mentions, wrong, missing, chains, wrong_chains, with_errors)


def _image_errors(image: Image, reference: Image) -> tuple[int, int, int, int, int]:
    """Mentions, wrong and missing ones, chains and wrong ones of an image."""
    if [caption.tokens for caption in image.captions] != [caption.tokens for caption in reference.captions]:
        raise DeixisError(f"image {image.id} has other captions in the reference")
    mentions, expected = _mentions(image), _mentions(reference)
    common = mentions.keys() & expected.keys()
    chains, true_chains = _chains(mentions, common), _chains(expected, common)
    wrong = sum(mentions not in true_chains for mentions in chains)
    return len(mentions), len(mentions.keys() - common), len(expected.keys() - common), len(chains), wrong


def _mentions(image: Image) -> dict[Mention, str]:
    """The chain of each visual mention."""
    return {
        (index, phrase.start, phrase.end): phrase.chain
        for index, caption in enumerate(image.captions)
        for phrase in caption.phrases
        if phrase.visual
    }


def _chains(chain_of: dict[Mention, str], among: set[Mention]) -> set[frozenset[Mention]]:
    members: dict[str, set[Mention]] = {}
    for mention in among:
        members.setdefault(chain_of[mention], set()).add(mention)
    return set(map(frozenset, members.values()))

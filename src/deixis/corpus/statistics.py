"""Statistics of a corpus, counted as in the Entities paper, section 2.4 and Table 1.

The counting rules for the rows of Table 1 were inferred from the released data. They reproduce every row to the last
digit (except one chain of `other`, and 2.86 mentions per chain of instruments where the paper has 2.85):

- a *chain* is an id in the XML or in a sentence, with or without mentions;
- the *types* of a chain are those of all its mentions, and a chain with two types counts under both;
- *mentions* under a type are all mentions of its chains, even those of another type;
- *boxes* under a type are links: a box shared by two chains counts for each.

The total row follows other rules. Its 1.13 boxes per chain count every box once (links give 1.28). Its 2.10 mentions
per chain (513,644 mentions) do not match the released data, which has 529,072 linked mentions, 2.17 per chain. Both
ways to count boxes are reported here, as `linked_boxes` and `boxes`.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import msgspec

from deixis.corpus.opening import READER_VERSION, SLOW_SECONDS, open_corpus
from deixis.corpus.records import NOT_VISUAL_CHAIN, TYPES, Corpus, Image
from deixis.corpus.tree import open_tree
from deixis.files import atomic_write, cache_folder

#: Part of every cache key. Increase it when the counting changes.
STATISTICS_VERSION = 1
#: Entities, section 2.4: percentage of images that mention each type.
PAPER_IMAGES_MENTIONING = {
    "people": 94.2,
    "clothing": 69.9,
    "bodyparts": 28.0,
    "animals": 12.0,
    "vehicles": 13.8,
    "instruments": 4.3,
    "scene": 79.7,
    "other": 91.8,
}
#: Entities, section 2.4: the figures in the text, under their names in `Statistics`.
PAPER_FIGURES = {
    "images": 31783,
    "captions": 158915,
    "mentions": 513644,
    "mentions_per_caption": 3.2,
    "chains": 244035,
    "chains_per_image": 7.7,
    "boxes": 275775,
    "boxes_per_image": 8.7,
    "chains_with_several_mentions": 48.6,
    "chains_with_one_box": 59.1,
    "chains_with_several_boxes": 20.0,
    "chains_without_box": 20.9,
}


class TypeStatistics(msgspec.Struct, kw_only=True):
    """One row of Table 1. Ratios are per chain of the type; `images_mentioning` is a percentage of all images."""

    chains: int = 0
    mentions: int = 0
    mentions_per_chain: float = 0.0
    linked_boxes: int = 0
    boxes_per_chain: float = 0.0
    images: int = 0
    images_mentioning: float = 0.0


class Statistics(msgspec.Struct, kw_only=True):
    """Counts are integers, ratios floats; `chains_with_…` and `chains_without_…` are percentages of the chains."""

    images: int = 0
    splits: dict[str, int]
    captions: int = 0
    captions_per_image: float = 0.0
    unrelated_captions: int = 0
    tokens: int = 0
    tokens_per_caption: float = 0.0
    vocabulary: int = 0
    mentions: int = 0
    mentions_per_caption: float = 0.0
    words_per_mention: float = 0.0
    nonvisual_phrases: int = 0
    chains: int = 0
    chains_per_image: float = 0.0
    mentions_per_chain: float = 0.0
    chains_with_several_mentions: float = 0.0
    chains_without_mention: float = 0.0
    boxes: int = 0
    boxes_per_image: float = 0.0
    boxes_per_chain: float = 0.0
    linked_boxes: int = 0
    linked_boxes_per_chain: float = 0.0
    chains_with_one_box: float = 0.0
    chains_with_several_boxes: float = 0.0
    chains_without_box: float = 0.0
    scene_chains: int = 0
    no_box_chains: int = 0
    by_type: dict[str, TypeStatistics]


def corpus_statistics(corpus: Corpus) -> Statistics:
    """Count a corpus. Types are in the order of Table 1, followed by other labels in alphabetical order."""
    counts = Statistics(images=len(corpus), splits=dict(corpus.splits), by_type={})
    vocabulary: set[str] = set()
    mention_words = several_mentions = no_mention = one_box = no_box = 0
    for image in corpus:
        mentions, types, words = _count_captions(image, counts, vocabulary)
        mention_words += words
        counts.boxes += len(image.boxes)
        counts.chains += len(image.chains)
        seen: set[str] = set()
        for chain in image.chains:
            mentioned, linked = mentions.get(chain.id, 0), len(chain.boxes)
            several_mentions += mentioned > 1
            no_mention += mentioned == 0
            one_box += linked == 1
            no_box += linked == 0
            counts.linked_boxes += linked
            counts.scene_chains += chain.scene
            counts.no_box_chains += chain.no_box
            for type_ in types.get(chain.id) or ((chain.label,) if chain.label else ()):
                row = counts.by_type.get(type_)
                if row is None:
                    row = counts.by_type[type_] = TypeStatistics()
                row.chains += 1
                row.mentions += mentioned
                row.linked_boxes += linked
                if type_ not in seen:
                    seen.add(type_)
                    row.images += 1
    counts.vocabulary = len(vocabulary)
    counts.words_per_mention = _ratio(mention_words, counts.mentions)
    counts.chains_with_several_mentions = _percent(several_mentions, counts.chains)
    counts.chains_without_mention = _percent(no_mention, counts.chains)
    counts.chains_with_one_box = _percent(one_box, counts.chains)
    counts.chains_without_box = _percent(no_box, counts.chains)
    counts.chains_with_several_boxes = _percent(counts.chains - one_box - no_box, counts.chains)
    _fill_ratios(counts)
    return counts


def read_statistics(path: str | Path, *, format: str | None = None) -> Statistics:
    """Open and count the corpus at `path`. Slow results are cached until a file of the corpus changes."""
    if not Path(path).exists():
        return corpus_statistics(open_corpus(path, format=format))
    versions = f"{STATISTICS_VERSION} {READER_VERSION}"
    digest = hashlib.sha256(f"{versions} {format or ''} {Path(path).resolve()}\n".encode(errors="surrogateescape"))
    for line in open_tree(path).stamp():
        digest.update(line.encode(errors="surrogateescape") + b"\n")
    file = cache_folder() / "statistics" / f"{digest.hexdigest()}.json"
    try:
        return msgspec.json.decode(file.read_bytes(), type=Statistics)
    except (OSError, msgspec.DecodeError):
        start = time.monotonic()
    counts = corpus_statistics(open_corpus(path, format=format))
    if time.monotonic() - start > SLOW_SECONDS:
        try:
            with atomic_write(file) as stream:
                stream.write(msgspec.json.encode(counts))
        except OSError:
            pass  # Without the cache, only time is lost.
    return counts


def is_flickr30k_entities(counts: Statistics) -> bool:
    """Whether these are the counts of the complete release, so that they can be compared with the paper."""
    return all(getattr(counts, name) == PAPER_FIGURES[name] for name in ("images", "captions", "chains", "boxes"))


def _count_captions(
    image: Image, counts: Statistics, vocabulary: set[str]
) -> tuple[dict[str, int], dict[str, tuple[str, ...]], int]:
    """Mentions and types per chain, and the number of words in all mentions. Updates the caption counts in `counts`."""
    mentions: dict[str, int] = {}
    types: dict[str, tuple[str, ...]] = {}
    mention_words = 0
    for caption in image.captions:
        tokens = caption.text.lower().split() if caption.words is None else [word.lower() for word in caption.words]
        counts.tokens += len(tokens)
        counts.unrelated_captions += caption.unrelated
        vocabulary.update(tokens)
        for phrase in caption.phrases:
            chain = phrase.chain
            if chain == NOT_VISUAL_CHAIN:
                counts.nonvisual_phrases += 1
                continue
            mention_words += phrase.end - phrase.start
            mentions[chain] = mentions.get(chain, 0) + 1
            known = types.get(chain, ())
            if known != phrase.types:
                types[chain] = known + tuple(type_ for type_ in phrase.types if type_ not in known)
    counts.captions += len(image.captions)
    counts.mentions += sum(mentions.values())
    return mentions, types, mention_words


def _fill_ratios(counts: Statistics) -> None:
    counts.captions_per_image = _ratio(counts.captions, counts.images)
    counts.tokens_per_caption = _ratio(counts.tokens, counts.captions)
    counts.mentions_per_caption = _ratio(counts.mentions, counts.captions)
    counts.chains_per_image = _ratio(counts.chains, counts.images)
    counts.mentions_per_chain = _ratio(counts.mentions, counts.chains)
    counts.boxes_per_image = _ratio(counts.boxes, counts.images)
    counts.boxes_per_chain = _ratio(counts.boxes, counts.chains)
    counts.linked_boxes_per_chain = _ratio(counts.linked_boxes, counts.chains)
    for row in counts.by_type.values():
        row.mentions_per_chain = _ratio(row.mentions, row.chains)
        row.boxes_per_chain = _ratio(row.linked_boxes, row.chains)
        row.images_mentioning = _percent(row.images, counts.images)
    order = {type_: index for index, type_ in enumerate(TYPES)}
    ordered = sorted(counts.by_type.items(), key=lambda item: (order.get(item[0], len(order)), item[0]))
    counts.by_type = dict(ordered)


def _ratio(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0


def _percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 2) if whole else 0.0

"""Region-phrase ranking (HM-LSTM, section 5.2, Table 4): the phrases of a region, and the regions of a phrase.

A region is the merged boxes of a chain; chains with the same merged box are one region. Phrases are ranked as unique
strings in lower case: a hit is any string that names the region, and "a man" is one candidate, not six hundred. The
figures over instances treat every mention as a candidate of its own, correct only for its own region, so equal strings
tie and the ties count against the model. The expected figures of a random order are beside both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from deixis.corpus.boxes import box_array, merge
from deixis.corpus.records import Box, Image
from deixis.errors import DeixisError
from deixis.metrics.ranking import Figures, figures, random_figures
from deixis.metrics.score_blocks import Block, Integers, MatrixScores, Scores

#: Scores in memory at once.
BLOCK = 4_000_000


@dataclass(frozen=True)
class RegionPhrases:
    """Regions, unique strings, and the mentions that link them."""

    #: The image and the merged box of each region.
    regions: tuple[tuple[str, Box], ...]
    #: Every visual phrase in lower case; those of chains without a box are wrong for every region.
    strings: tuple[str, ...]
    #: `(mentions, 2)`: the string and the region of each mention; region −1 where its chain has no box.
    mentions: Integers


@dataclass(frozen=True)
class TwoWay:
    """Both directions, with the expected figures of a random order for each."""

    region_to_phrase: Figures
    phrase_to_region: Figures
    random_region_to_phrase: Figures
    random_phrase_to_region: Figures

    def as_dict(self) -> dict[str, Any]:
        return {
            "region_to_phrase": self.region_to_phrase.as_dict(),
            "phrase_to_region": self.phrase_to_region.as_dict(),
            "random": {
                "region_to_phrase": self.random_region_to_phrase.as_dict(),
                "phrase_to_region": self.random_phrase_to_region.as_dict(),
            },
        }


@dataclass(frozen=True)
class RegionPhraseRanking:
    """The figures over unique strings, and over instances."""

    strings: TwoWay
    instances: TwoWay

    def as_dict(self) -> dict[str, Any]:
        return {"strings": self.strings.as_dict(), "instances": self.instances.as_dict()}


def region_phrases(images: Iterable[Image]) -> RegionPhrases:
    """Gather the regions and phrases of a split, in the order of images, captions and phrases."""
    regions: dict[tuple[str, Box], int] = {}
    strings: dict[str, int] = {}
    mentions = []
    for image in images:
        boxes = {chain.id: image.chain_boxes(chain.id) for chain in image.chains}
        merged = {
            chain: Box(*merge(box_array(chain_boxes)).tolist()) for chain, chain_boxes in boxes.items() if chain_boxes
        }
        for caption in image.captions:
            for phrase in (phrase for phrase in caption.phrases if phrase.visual):
                string = strings.setdefault(caption.phrase_text(phrase).lower(), len(strings))
                box = merged.get(phrase.chain)
                region = -1 if box is None else regions.setdefault((image.id, box), len(regions))
                mentions.append((string, region))
    return RegionPhrases(tuple(regions), tuple(strings), np.array(mentions, dtype=np.int64).reshape(-1, 2))


def evaluate_region_phrases(items: RegionPhrases, scores: Scores) -> RegionPhraseRanking:
    """Rank strings for regions and regions for strings.

    Args:
        items: from `region_phrases`.
        scores: `(regions, strings)`, in the order of `items`.
    """
    shape = (len(items.regions), len(items.strings))
    if scores.shape != shape:
        given = f"{scores.shape[0]} × {scores.shape[1]}"
        raise DeixisError(f"scores are {given}, but there are {shape[0]} regions and {shape[1]} phrase strings")
    return _rank_both_ways(scores, items.mentions)


def region_phrase_recall(scores: npt.ArrayLike, mentions: npt.ArrayLike) -> dict[str, Any]:
    """Recall@K and ranks of phrase strings for regions and of regions for phrase strings.

    Args:
        scores: `(regions, strings)`, higher is better. Every region needs a mention.
        mentions: `(mentions, 2)`: the string and the region of each mention; region −1 where it has no box.

    Returns:
        `strings` counts unique strings, `instances` every mention. Each has `region_to_phrase`, `phrase_to_region` and,
        in `random`, what a random order is expected to get.

    Raises:
        DeixisError: a mention names a string or region that has no score, or no mention has a region.

    >>> found = region_phrase_recall([[0.9, 0.1], [0.8, 0.3]], mentions=[[0, 0], [1, 1]])
    >>> found["strings"]["region_to_phrase"]["r@1"], found["strings"]["phrase_to_region"]["r@1"]
    (50.0, 100.0)
    """
    matrix, links = MatrixScores(scores), np.asarray(mentions, np.int64)
    if links.ndim != 2 or links.shape[1] != 2 or (links < [0, -1]).any() or (links >= matrix.shape[::-1]).any():
        regions, strings = matrix.shape
        raise DeixisError(f"mentions must be pairs of a string (0 to {strings - 1}) and a region (−1 to {regions - 1})")
    without = np.setdiff1d(np.arange(matrix.shape[0]), links[:, 1])
    if without.size:
        raise DeixisError(f"region {without[0]} has no mention")
    return _rank_both_ways(matrix, links).as_dict()


def _rank_both_ways(scores: Scores, mentions: Integers) -> RegionPhraseRanking:
    shape = scores.shape
    linked = mentions[mentions[:, 1] >= 0]
    if not len(linked):
        raise DeixisError("nothing to rank: no phrase of these images has a box")
    links, times = np.unique(linked[:, ::-1], axis=0, return_counts=True)
    region, string = links[:, 0], links[:, 1]
    once = np.ones(len(links), np.int64)
    repeats = np.bincount(mentions[:, 0], minlength=shape[1])
    region_slack, string_slack = scores.slack
    everything = (slice(0, shape[0]), slice(0, shape[1]))

    def of_region(chosen: Integers) -> Block:
        return scores.block(slice(int(chosen[0]), int(chosen[-1]) + 1), everything[1])

    def of_string(chosen: Integers) -> Block:
        # Strings in between are computed too, so that a scorer only has to handle slices.
        first, last = int(chosen.min()), int(chosen.max())
        return scores.block(everything[0], slice(first, last + 1)).T[chosen - first]

    all_regions, all_strings = np.arange(shape[0]), np.unique(string)
    to_string = _ranks(of_region, all_regions, region_slack, (region, string, once), np.ones(shape[1], np.int64))
    to_mention = _ranks(of_region, all_regions, region_slack, (region, string, times), repeats)
    row_of = np.searchsorted(all_strings, string)
    to_region = _ranks(of_string, all_strings, string_slack, (row_of, region, once), np.ones(shape[0], np.int64))
    # Only its own region is correct for a mention; mentions with the same string and region have the same rank.
    order = np.argsort(string, kind="stable")
    right_regions = (np.arange(len(links)), region[order], once)
    by_link = _ranks(of_string, string[order], string_slack, right_regions, np.ones(shape[0], np.int64))
    mention_to_region = np.repeat(by_link, times[order])

    by_region, by_string = np.bincount(region), np.bincount(string)
    mentions_of_region = np.bincount(region, weights=times).astype(np.int64)
    return RegionPhraseRanking(
        strings=TwoWay(
            figures(to_string, shape[1]),
            figures(to_region, shape[0]),
            random_figures(by_region, shape[1]),
            random_figures(by_string, shape[0]),
        ),
        instances=TwoWay(
            figures(to_mention, len(mentions)),
            figures(mention_to_region, shape[0]),
            random_figures(mentions_of_region, len(mentions)),
            random_figures(np.ones(len(linked), np.int64), shape[0]),
        ),
    )


def _ranks(
    score: Callable[[Integers], Block],
    queries: Integers,
    slack: npt.NDArray[np.float64],
    right: tuple[Integers, Integers, Integers],
    copies: Integers,
) -> Integers:
    """The rank of each query's best correct answer, where a candidate may represent several copies with one score.

    Args:
        score: gives the scores of some queries, `(queries, candidates)`.
        queries: the indices to pass to `score`.
        slack: by those indices, how far below a correct answer's score still counts as a tie.
        right: position in `queries`, candidate, and how many of the candidate's copies are correct.
        copies: the number of copies of each candidate.
    """
    ranks = np.empty(len(queries), np.int64)
    step = max(1, BLOCK // len(copies))
    for start in range(0, len(queries), step):
        chosen = queries[start : start + step]
        block = score(chosen)
        in_block = (right[0] >= start) & (right[0] < start + len(chosen))
        row, candidate, right_copies = right[0][in_block] - start, right[1][in_block], right[2][in_block]
        best = np.full(len(chosen), -np.inf)
        np.maximum.at(best, row, block[row, candidate])
        reached = block >= (best - slack[chosen]).astype(block.dtype)[:, None]
        before = reached @ copies
        np.subtract.at(before, row, right_copies * reached[row, candidate])
        ranks[start : start + step] = before + 1
    return ranks

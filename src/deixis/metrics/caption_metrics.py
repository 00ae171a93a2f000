"""Caption metrics: BLEU-1..4, ROUGE-L and CIDEr-D as COCO's caption evaluation computes them, without Java.

The figures equal those of `pycocoevalcap` 1.2, quirks included, so they compare with published ones.
The metrics take tokenized captions; `caption_scores` takes plain ones and tokenizes them as COCO does.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from deixis.errors import DeixisError

Tokens = Sequence[str]
Ngrams = Counter[tuple[str, ...]]

#: The longest n-gram of BLEU and CIDEr-D.
ORDER = 4
#: ROUGE-L's weight of recall over precision.
BETA = 1.2
#: Width, in words, of CIDEr-D's penalty for a candidate longer or shorter than the reference.
SIGMA = 6.0

# What COCO's evaluation drops after tokenization (the last three are what the tokenizer writes as `` or ''). Its list
# has brackets in capitals (-LRB-), but by then the tokenizer has lowered them, so brackets stay; so do !! and ?!.
_DROPPED = frozenset(("''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";", '"', "«", "»"))
_BRACKETS = str.maketrans({"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"})
_RESPELLED = str.maketrans({
    "’": "'", "‘": "`", "“": '"', "”": '"', "–": "--", "—": "--", "―": "--", "…": "...",
    "½": " 1/2 ", "¼": " 1/4 ", "¾": " 3/4 ", "£": "#", "€": "$", "¢": " cents ",
    "\N{SOFT HYPHEN}": "", "\N{ZERO WIDTH SPACE}": " ", "\N{ZERO WIDTH NO-BREAK SPACE}": " ",
})  # fmt: skip
_ENTITIES = {"&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&nbsp;": " "}
_CUT_IN_TWO = {
    "cannot": ("can", "not"), "gonna": ("gon", "na"), "gotta": ("got", "ta"), "wanna": ("wan", "na"),
    "gimme": ("gim", "me"), "lemme": ("lem", "me"), "'tis": ("'t", "is"), "'twas": ("'t", "was"),
}  # fmt: skip
# Abbreviations that keep their full stop.
_ABBREVIATION = (
    "adm|ala|apr|ariz|ark|assn|aug|ave|bldg|blvd|bros|capt|cmdr|co|col|conn|corp|cos|cpl|dec|dept|dr|drs|esq|est|etc|ext"
    "|feb|fla|fri|ft|ga|gen|gov|hon|inc|ind|jan|jr|jul|jun|kan|ky|lt|ltd|maj|md|messrs|mfg|mich|minn|mo|mon|mont|mr|mrs"
    "|ms|mt|neb|nev|nov|oct|okla|pa|penn|plc|pres|prof|pvt|rd|rep|rev|sen|sep|sept|sgt|sq|sr|st|ste|tel|tenn|thu|thurs"
    "|tue|tues|univ|va|vs|vt|wed|wis|wyo"
)
_LETTER = r"[^\W_]"  # letters and digits of any script
_TOKEN = re.compile(
    rf"""
      [a-z]+(?=[\s,]|$)                                                # by far the most frequent: a plain word
    | (?:https?://|www\.)\S+ | [\w.+-]+@{_LETTER}+(?:\.{_LETTER}+)+ | </?[a-z][^<>]*>
    | [:;=]'?-?[()] | [:;=]-?[DP]\b                                    # :-)
    | \.\.\. | --+ | [!?]{{2,}}
    | (?<!\w)(?-i:[A-Z]+&[A-Z]+)                                       # AT&T
    | (?<!\w)(?:[a-z]\.)+[a-z]?(?!\w)                                  # B. U.S. a.m
    | (?<!\w)(?:{_ABBREVIATION})\.(?!\w) | (?<!\w)(?:no|nos|fig)\.(?=\s*\d)
    | '(?:s|m|d|re|ve|ll|em|til|cause|tis|twas)\b | '\d\ds?\b(?!') | 'n(?:'|(?!\w))
    | n't\b | [a-z]+(?=n't\b) | y'(?=[a-z])                            # is|n't, y'|all
    | (?:c'mon|cap'n|ma'am|e'er|ne'er|nor'easter|s'mores|li'l|c'est|qu'il|ol')(?!\w)
    | [-+]?\d*(?:[.,]\d+)+(?:-{_LETTER}+)+                             # 3.5-inch
    | [-+]?\d*(?:[.,:]\d+)+ | [-+]\d+(?!\w)                            # 5:30 1,000 -5
    | \#[a-z]+ | @{_LETTER}+
    | (?:{_LETTER}+-)*(?:[dol]'(?!s\b))?{_LETTER}+(?:[-_/]{_LETTER}(?:'{_LETTER})?{_LETTER}*)*  # t-shirt o'clock
      (?:[.!?](?=[a-z]){_LETTER}+)*(?:\+\+|\.(?=[,;:]))?               # end.The "it.," C++
    | \S
    """,
    re.VERBOSE | re.IGNORECASE,
)


def tokenize_caption(caption: str) -> list[str]:
    """Cut a caption as COCO's evaluation does: Penn Treebank tokens in lower case, punctuation left out.

    Clitics are cut off (`do n't`, `man 's`), hyphens inside words stay, brackets become `-lrb-` and the like.
    Known differences from the Stanford tokenizer (CoreNLP 3.4.1): it looks at the next word's capital to end a sentence
    after an initial ("plan B. The man"), knows more abbreviations and emoticons, keeps a telephone number's brackets
    in the token, and cuts `#a9` and `2.dog`: all rare in captions.

    >>> tokenize_caption("A man's T-shirt isn't blue-green (it's red).")
    ['a', 'man', "'s", 't-shirt', 'is', "n't", 'blue-green', '-lrb-', 'it', "'s", 'red', '-rrb-']
    """
    text = re.sub(r"&(?:amp|lt|gt|quot|nbsp);", lambda entity: _ENTITIES[entity[0]], caption.translate(_RESPELLED))
    tokens: list[str] = []
    for token in _TOKEN.findall(text):
        token = token.lower()
        if token in _CUT_IN_TWO:
            tokens.extend(_CUT_IN_TWO[token])
        elif token not in _DROPPED and not token.startswith("---"):
            tokens.append(token.translate(_BRACKETS))
    return tokens


def caption_scores(candidates: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """BLEU-1 to 4, ROUGE-L and CIDEr-D of one caption per image against the image's references.

    CIDEr-D weighs words by their rarity in these references, so it depends on the whole set.

    Args:
        candidates: by image, the caption to score, as plain text.
        references: by image, the captions to compare it with, as plain text; the same images.

    Returns:
        `bleu_1` to `bleu_4`, `rouge_l` and `cider_d` in percent, as papers print them (CIDEr-D can exceed 100).

    Raises:
        DeixisError: an image has a candidate but no references, or the other way round.

    >>> references = {"1": ["A dog runs in the snow.", "A dog is running."], "2": ["Two men talk in the street."]}
    >>> scores = caption_scores({"1": "a dog runs in the snow", "2": "two men walk in the street"}, references)
    >>> {name: round(score, 1) for name, score in scores.items()}
    {'bleu_1': 91.7, 'bleu_2': 85.6, 'bleu_3': 77.1, 'bleu_4': 69.2, 'rouge_l': 91.7, 'cider_d': 484.1}
    """
    images = _paired(candidates, references)
    tokenized = [tokenize_caption(candidates[image]) for image in images]
    wanted = [[tokenize_caption(reference) for reference in references[image]] for image in images]
    corpus_bleu, _ = bleu(tokenized, wanted)
    scores = {f"bleu_{order}": score for order, score in enumerate(corpus_bleu, 1)}
    scores["rouge_l"] = _mean(rouge_l(tokenized, wanted))
    scores["cider_d"] = _mean(cider_d(tokenized, wanted))
    return {name: 100 * score for name, score in scores.items()}


def bleu(candidates: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> tuple[list[float], list[list[float]]]:
    """BLEU-1 to BLEU-4 of the whole set, and of each image by itself, from 0 to 1.

    A candidate's effective reference length is that of the reference closest in length, the shorter of two.

    Args:
        candidates: the tokens of each image's caption.
        references: for each image the tokens of its references, at least one.

    Returns:
        The four scores of the set, and for each image its four scores.

    >>> whole, each = bleu(["a dog runs in the snow".split()], [["a dog runs in deep snow".split()]])
    >>> [round(score, 3) for score in whole]
    [0.833, 0.707, 0.63, 0.537]
    """
    lengths = [0, 0]
    matches, guesses = [0] * ORDER, [0] * ORDER
    of_images = []
    for candidate, wanted in zip(candidates, references, strict=True):
        closest = min((abs(len(reference) - len(candidate)), len(reference)) for reference in wanted)[1]
        wanted_ngrams = [_ngrams(reference) for reference in wanted]
        matched = [
            sum(
                min(count, max(reference[order][ngram] for reference in wanted_ngrams))
                for ngram, count in ngrams.items()
            )
            for order, ngrams in enumerate(_ngrams(candidate))
        ]
        tried = [max(0, len(candidate) - order) for order in range(ORDER)]
        of_images.append(_bleu(matched, tried, len(candidate), closest))
        lengths = [lengths[0] + len(candidate), lengths[1] + closest]
        matches = [total + count_of_image for total, count_of_image in zip(matches, matched, strict=True)]
        guesses = [total + count_of_image for total, count_of_image in zip(guesses, tried, strict=True)]
    return _bleu(matches, guesses, *lengths), of_images


def _bleu(matches: list[int], guesses: list[int], candidate_length: int, reference_length: int) -> list[float]:
    """BLEU from its counts. pycocoevalcap's smoothing: 1e-15 on what is matched, 1e-9 on what is divided by."""
    ratio = (candidate_length + 1e-15) / (reference_length + 1e-9)
    brevity = math.exp(1 - 1 / ratio) if ratio < 1 else 1.0
    scores, product = [], 1.0
    for order in range(ORDER):
        product *= (matches[order] + 1e-15) / (guesses[order] + 1e-9)
        scores.append(product ** (1 / (order + 1)) * brevity)
    return scores


def rouge_l(candidates: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> list[float]:
    """ROUGE-L of each image, 0 to 1; the score of the set is the mean.

    As in pycocoevalcap, precision and recall are each the best over the references, not those of one reference, and an
    empty caption counts as one empty token (which matches another empty caption).

    >>> rouge_l([["a", "dog", "runs"]], [[["a", "dog", "runs"], ["dogs", "run"]]])
    [1.0]
    """
    scores = []
    for candidate, wanted in zip(candidates, references, strict=True):
        candidate = candidate or ("",)
        shared = [(_common_subsequence(candidate, reference or ("",)), len(reference) or 1) for reference in wanted]
        precision = max(length for length, _ in shared) / len(candidate)
        recall = max(length / total for length, total in shared)
        weighted = recall + BETA**2 * precision
        scores.append((1 + BETA**2) * precision * recall / weighted if weighted else 0.0)
    return scores


def cider_d(candidates: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> list[float]:
    """CIDEr-D of each image, times ten as published; the score of the set is the mean.

    A document is an image's references taken together; n-grams that no reference has count as seen in one image.

    >>> captions = [["a", "dog", "runs", "fast"], ["two", "men", "talk", "here"]]
    >>> [round(score, 3) for score in cider_d(captions, [[caption] for caption in captions])]
    [10.0, 10.0]
    """
    counted = [[_ngrams(reference) for reference in wanted] for wanted in references]
    all_images = math.log(len(references)) if references else 0.0
    rarities = []
    for order in range(ORDER):
        seen_in = Counter(ngram for wanted in counted for ngram in set().union(*(ngrams[order] for ngrams in wanted)))
        rarities.append({ngram: all_images - math.log(images) for ngram, images in seen_in.items()})

    def weighed(ngrams: list[Ngrams]) -> list[dict[tuple[str, ...], float]]:
        return [
            {ngram: count * rarity.get(ngram, all_images) for ngram, count in counts.items()}
            for counts, rarity in zip(ngrams, rarities, strict=True)
        ]

    scores = []
    for candidate, wanted, wanted_ngrams in zip(candidates, references, counted, strict=True):
        candidate_weights = weighed(_ngrams(candidate))
        total = 0.0
        for reference, ngrams in zip(wanted, wanted_ngrams, strict=True):
            # pycocoevalcap measures length in bigrams, so an empty caption is as long as one of a single word.
            difference = max(len(candidate) - 1, 0) - max(len(reference) - 1, 0)
            penalty = math.exp(-(difference**2) / (2 * SIGMA**2))
            total += penalty * sum(map(_clipped_cosine, candidate_weights, weighed(ngrams)))
        scores.append(10 * total / ORDER / len(wanted))
    return scores


def _clipped_cosine(candidate: dict[tuple[str, ...], float], reference: dict[tuple[str, ...], float]) -> float:
    """The D of CIDEr-D: saying a word more often than the reference earns nothing, but lengthens the vector."""
    product = sum(
        min(weight, reference[ngram]) * reference[ngram] for ngram, weight in candidate.items() if ngram in reference
    )
    norms = math.sqrt(
        sum(weight * weight for weight in candidate.values()) * sum(weight * weight for weight in reference.values())
    )
    return product / norms if norms else 0.0


def _ngrams(tokens: Tokens) -> list[Ngrams]:
    """How often each n-gram occurs: one count for each order, single words first."""
    return [Counter(zip(*(tokens[start:] for start in range(order + 1)), strict=False)) for order in range(ORDER)]


def _common_subsequence(one: Tokens, other: Tokens) -> int:
    """Length of the longest common subsequence, a row of the usual table at a time as the bits of one integer."""
    places: dict[str, int] = {}
    for index, token in enumerate(one):
        places[token] = places.get(token, 0) | 1 << index
    # A zero bit marks where the table's row grows by one (Hyyrö 2004).
    every = (1 << len(one)) - 1
    row = every
    for token in other:
        matched = row & places.get(token, 0)
        row = (row + matched | row - matched) & every
    return len(one) - row.bit_count()


def _paired(candidates: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> list[str]:
    """The image ids to score, in order; every candidate needs references and the other way round."""
    if not candidates:
        raise DeixisError("no candidate captions to score")
    for image in candidates:
        if image not in references:
            raise DeixisError(f"candidate for image {image!r} has no references")
        if isinstance(references[image], str):
            raise DeixisError(f"references of image {image!r} must be a list of captions, not one text")
        if not references[image]:
            raise DeixisError(f"image {image!r} has an empty list of references")
    missing = [image for image in references if image not in candidates]
    if missing:
        raise DeixisError(f"{len(missing)} images have references but no candidate, the first is {missing[0]!r}")
    return list(candidates)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)

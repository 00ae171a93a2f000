"""Correspondences of noun phrases and regions in the training captions (section 3.3), round by round.

They are found from sentences, trees, pictures and proposals; ground-truth boxes are not used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors
import safetensors.numpy
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from deixis.corpus import Corpus, Image, TrainingSet
from deixis.errors import DeixisError, InputError
from deixis.features.arrays import RaggedArray
from deixis.features.store import FeatureStore
from deixis.files import atomic_write, require_regular
from deixis.papers.hm_lstm.fast.forest import NOUN_PHRASE
from deixis.papers.hm_lstm.network import HMLSTM, TEXTS, TreeTexts
from deixis.text.tokens import tokens_of_captions

#: The file in a run folder.
CORRESPONDENCES = "correspondences.safetensors"
#: Phrases whose candidates are scored together: 20 of 512 float32 are 41 kB per phrase.
PHRASES = 4096
#: Images whose regions are read together.
_IMAGES = 256
Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TreeData:
    """Sentences as trees, and the features of their pictures. Build it with `tree_data`.

    `visual` has the pictures one after another: the whole picture, then its best regions. Mentions are the noun phrases
    of the captions' trees, caption by caption, in the order of `Forest.add`.
    """

    visual: Tensor  # (rows, channels) as stored
    offsets: Indices  # (images + 1,): where each picture's rows begin
    boxes: NDArray[np.float32]  # (rows, 4) in the original picture's pixels
    image_of: Indices  # (captions,)
    tree: Indices  # (captions,): numbers in the forest, equal for equal strings
    mention_offsets: Indices  # (captions + 1,): where each caption's mentions begin
    mention_string: Indices  # (mentions,), equal for equal strings
    spans: Indices  # (mentions, 2): first token, and one past the last
    image_ids: tuple[str, ...]

    @property
    def mentions(self) -> int:
        return int(self.mention_offsets[-1])

    @property
    def mention_caption(self) -> Indices:
        return np.repeat(np.arange(len(self.image_of)), np.diff(self.mention_offsets))


def tree_data(
    source: TrainingSet | Corpus, store: FeatureStore, texts: TreeTexts, regions: int, device: torch.device
) -> TreeData:
    """The images of a training set or split that have features.

    Args:
        store: vectors of whole pictures and of regions, of the same size.
        texts: gives the trees.
        regions: maximum number per picture, the first ones.
    """
    images = [image for image in source if image.id not in store.skipped]
    if not images:
        raise DeixisError("none of these images has features")
    captions = tokens_of_captions(images)
    tree = texts.transform(captions)
    spans = [caption_tree.spans(NOUN_PHRASE) for caption_tree in texts.bank.trees(captions)]
    strings: dict[tuple[str, ...], int] = {}
    string = [
        strings.setdefault(tokens[start:end], len(strings))
        for tokens, caption_spans in zip(captions, spans, strict=True)
        for start, end in caption_spans
    ]
    visual, boxes, offsets = _read_visual(images, store, regions, device)
    return TreeData(
        visual=visual,
        offsets=offsets,
        boxes=boxes,
        image_of=np.repeat(np.arange(len(images)), [len(image.captions) for image in images]),
        tree=tree,
        mention_offsets=np.cumsum([0, *map(len, spans)]),
        mention_string=np.array(string, np.int64),
        spans=np.array([span for caption_spans in spans for span in caption_spans], np.int64).reshape(-1, 2),
        image_ids=tuple(image.id for image in images),
    )


def _read_visual(
    images: Sequence[Image], store: FeatureStore, most: int, device: torch.device
) -> tuple[Tensor, NDArray[np.float32], Indices]:
    """Features, boxes and offsets, read block by block into their tensors."""
    shape = store.plan.arrays["image"].shape
    if "regions" not in store.plan.arrays or store.plan.arrays["regions"].shape != shape:
        raise DeixisError(
            "this recipe needs vectors of pictures and regions of the same size: a feature recipe with [regions], "
            "without context and coordinates"
        )
    numbers = store.numbers(image.id for image in images)
    features, region_boxes = store["regions"], store["boxes"]
    assert isinstance(features, RaggedArray)
    counts = 1 + np.minimum(features.lengths[numbers], most)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    sizes = store["size"]
    boxes = np.zeros((offsets[-1], 4), np.float32)
    dtype = torch.from_numpy(np.empty(0, features.dtype)).dtype
    visual = torch.empty((int(offsets[-1]), *shape), dtype=dtype, device=device)
    for begin in range(0, len(images), _IMAGES):
        parts = []
        for index in range(begin, min(begin + _IMAGES, len(images))):
            stored, start, end = int(numbers[index]), offsets[index], offsets[index + 1]
            parts += [store["image"][stored][None], features[stored][:most]]
            boxes[start, 2:] = sizes[stored]
            boxes[start + 1 : end] = region_boxes[stored][:most]
        rows = slice(int(offsets[begin]), int(offsets[min(begin + _IMAGES, len(images))]))
        visual[rows] = torch.from_numpy(np.concatenate(parts)).to(device, dtype)
    return visual, boxes, offsets


class Correspondences(nn.Module):
    """The correspondences of all rounds, as buffers, so that they are in every checkpoint.

    Loading a state with the same or a smaller number of rounds changes nothing: weights of an earlier epoch may be
    restored (the best ones at the end, averaged ones for validation), but correspondences are kept.
    """

    rounds: Tensor
    region: Tensor
    confidence: Tensor

    def __init__(self, rounds: int, mentions: int) -> None:
        super().__init__()
        #: Number of rounds so far.
        self.register_buffer("rounds", torch.zeros((), dtype=torch.int64))
        #: By round and mention: the index of the region in its picture, and the cosine.
        self.register_buffer("region", torch.zeros((rounds, mentions), dtype=torch.int16))
        self.register_buffer("confidence", torch.zeros((rounds, mentions)))

    def add(self, region: Tensor, confidence: Tensor) -> None:
        index = int(self.rounds)
        self.region[index] = region.to(torch.int16)
        self.confidence[index] = confidence
        self.rounds += 1

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        if f"{prefix}rounds" in state_dict and int(state_dict[f"{prefix}rounds"]) <= int(self.rounds):
            return
        super()._load_from_state_dict(state_dict, prefix, *rest)


@torch.no_grad()
def find_correspondences(
    network: HMLSTM, texts: TreeTexts, data: TreeData, temperature: float = 0.0
) -> tuple[Tensor, Tensor]:
    """For each mention the index of a region of its picture (0: the whole picture), and their cosine.

    Args:
        temperature: 0 (as in section 3.3): the region with the largest cosine. Above 0: the softmax of the cosines over
            the temperature is the probability of each region, and the region with the largest expected overlap is
            taken. Means of phrases, regions and pictures are subtracted first, since they do not distinguish regions.
    """
    device = data.visual.device
    was_training = network.training
    network.eval()
    blocks = torch.split(data.visual, 1 << 15)
    embedded = torch.cat([network.embed_visual(block.float(), regions=True) for block in blocks])
    phrases, images = _embedded_phrases(network, texts, data)
    network.train(was_training)
    rows = torch.from_numpy(data.offsets).to(device)
    counts = rows.diff()
    candidates = torch.arange(int(counts.max()), device=device)
    whole = torch.zeros(len(embedded), dtype=torch.bool, device=device).index_fill(0, rows[:-1], value=True)
    compared = _less_means(embedded, whole) if temperature else embedded
    centre = phrases.mean(0) if temperature else 0
    boxes = torch.from_numpy(data.boxes).to(device)
    regions, confidences = [], []
    for part, image in zip(torch.split(phrases, PHRASES), torch.split(images, PHRASES), strict=True):
        exists = candidates < counts[image, None]
        region = torch.where(exists, rows[image, None] + candidates, 0)  # (phrases, candidates)
        scores = torch.einsum("pd,prd->pr", functional.normalize(part - centre, dim=-1), compared[region])
        scores = scores.masked_fill(~exists, -torch.inf)
        if temperature:
            scores = torch.einsum("pr,prq->pq", (scores / temperature).softmax(1), _overlaps(boxes[region]))
            scores = scores.masked_fill(~exists, -torch.inf)
        best = scores.argmax(1)
        regions.append(best)
        confidences.append((part * embedded[region.gather(1, best[:, None])[:, 0]]).sum(1))
    return torch.cat(regions), torch.cat(confidences)


def _embedded_phrases(network: HMLSTM, texts: TreeTexts, data: TreeData) -> tuple[Tensor, Tensor]:
    """All mentions `(mentions, dim)`, and their pictures `(mentions,)`."""
    device = data.visual.device
    phrases, images = [], []
    for start in range(0, len(data.tree), TEXTS):
        plan = texts.forest.plan(data.tree[start : start + TEXTS]).to(device)
        phrases.append(network.embed_nodes(plan, plan.phrase, phrases=True))
        images.append(torch.from_numpy(data.image_of[start : start + TEXTS]).to(device)[plan.phrase_tree])
    return torch.cat(phrases), torch.cat(images)


def _less_means(embedded: Tensor, whole: Tensor) -> Tensor:
    """Regions minus the mean of regions, and whole pictures minus the mean of these, normalized."""
    centres = torch.stack(
        [rows.mean(0) if len(rows) else embedded[0] * 0 for rows in (embedded[~whole], embedded[whole])]
    )
    return functional.normalize(embedded - centres[whole.long()], dim=-1)


def _overlaps(boxes: Tensor) -> Tensor:
    """Intersection over union of boxes `(…, n, 4)` with one another, `(…, n, n)`."""
    first, second = boxes[..., :, None, :], boxes[..., None, :, :]
    sides = torch.minimum(first[..., 2:], second[..., 2:]) - torch.maximum(first[..., :2], second[..., :2])
    shared = sides.clamp(min=0).prod(-1)
    area = (boxes[..., 2:] - boxes[..., :2]).prod(-1)
    return shared / (area[..., :, None] + area[..., None, :] - shared).clamp(min=1e-9)


@dataclass(frozen=True, eq=False)
class FoundRegions:
    """The correspondences of a run (`read_correspondences`)."""

    image_ids: tuple[str, ...]
    image: Indices  # (mentions,) index in `image_ids`
    caption: Indices  # (mentions,): the index of the caption in its image, as trained on
    spans: Indices  # (mentions, 2): tokens of the caption
    region: NDArray[np.int16]  # (rounds, mentions): index of the image's candidate
    confidence: NDArray[np.float32]  # (rounds, mentions): the cosine
    #: Boxes of the candidates of all images, `(rows, 4)`, the whole picture first, and where each image's begin.
    candidates: NDArray[np.float32]
    offsets: Indices

    @property
    def boxes(self) -> NDArray[np.float32]:
        """The boxes of the corresponding regions, `(rounds, mentions, 4)`."""
        return self.candidates[self.offsets[self.image] + self.region.astype(np.int64)]


def save_correspondences(folder: Path, correspondences: Correspondences, data: TreeData) -> None:
    """Write the correspondences of all rounds."""
    rounds = int(correspondences.rounds)
    caption = data.mention_caption
    image = data.image_of[caption]
    first = np.searchsorted(data.image_of, np.arange(len(data.image_ids)))
    arrays = {
        "image": image,
        "caption": caption - first[image],
        "spans": data.spans,
        "region": correspondences.region[:rounds].cpu().numpy(),
        "confidence": correspondences.confidence[:rounds].cpu().numpy(),
        "candidates": data.boxes,
        "offsets": data.offsets,
    }
    ids = msgspec.json.encode(data.image_ids).decode()
    with atomic_write(folder / CORRESPONDENCES) as stream:
        contiguous = {name: np.ascontiguousarray(value) for name, value in arrays.items()}
        stream.write(safetensors.numpy.save(contiguous, {"image_ids": ids}))


def read_correspondences(run: str | Path) -> FoundRegions:
    """The correspondences of each round of a finished run."""
    path = Path(run) / CORRESPONDENCES
    if not path.exists():
        raise InputError(run, "does not hold correspondences: only runs of HM-LSTM with rounds have them")
    try:
        with safetensors.safe_open(require_regular(path), "numpy") as file:
            ids = msgspec.json.decode((file.metadata() or {})["image_ids"], type=tuple[str, ...])
            return FoundRegions(ids, **{name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    except (OSError, KeyError, TypeError, safetensors.SafetensorError, msgspec.DecodeError) as fault:
        raise InputError(path, f"does not hold correspondences ({fault})") from None

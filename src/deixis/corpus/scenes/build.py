"""Scenes to a corpus: splits and families, records with boxes and chains, pictures on demand."""

from __future__ import annotations

import functools
import hashlib
import io
import os
import shutil
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from deixis.corpus.pictures import RenderedPictures
from deixis.corpus.records import (
    NOT_VISUAL,
    NOT_VISUAL_CHAIN,
    Box,
    Caption,
    Chain,
    Corpus,
    Image,
    Phrase,
    make_caption,
    make_image,
)
from deixis.corpus.scenes.captions import Draft, false_twins, write_captions
from deixis.corpus.scenes.chance import Chance
from deixis.corpus.scenes.drawn_figures import STAGE, box_of
from deixis.corpus.scenes.facts import HELD_OUT, combinations
from deixis.corpus.scenes.families import vary
from deixis.corpus.scenes.plans import Plan, draw_plan
from deixis.corpus.scenes.staging import Scene, stage
from deixis.corpus.scenes.words import Mention
from deixis.errors import DeixisError
from deixis.files import atomic_write, cache_folder

#: Split → its share of the images; `train` takes what is left over.
SHARES = {"train": 0.625, "val": 0.125, "test": 0.125, "unseen": 0.125}
#: How many scenes a family has, by chance: one stands alone, others have siblings that differ in one factor.
FAMILY_SIZES = (1, 1, 1, 2, 2, 3)
#: Groups are there to be counted: they nearly always have siblings.
GROUP_FAMILY_SIZES = (1, 3, 4)
#: Corpora of drawn scenes whose painted pictures are kept, those used last; a whole picture ends with these bytes.
KEPT, _WHOLE = 8, b"IEND\xaeB`\x82"


class ScenePictures(RenderedPictures):
    """The pictures of drawn scenes, with the scenes themselves. Can be sent to another process.

    What was painted once is found in the cache: painting takes several times as long as reading.
    """

    def __init__(self, scenes: Mapping[str, Scene], seed: int, size: tuple[int, int]) -> None:
        super().__init__(scenes, self.paint)
        self.scenes, self.seed, self.size = scenes, seed, size

    def paint(self, image_id: str) -> bytes:
        """One picture as PNG."""
        cached = self.folder / f"{image_id}.png"
        # A cache that cannot be read or written only costs time.
        with suppress(OSError):
            data = cached.read_bytes()
            if data.endswith(_WHOLE):
                return data
        from deixis.corpus.scenes.painting import render

        stream = io.BytesIO()
        render(self.scenes[image_id], self.seed, self.size).save(stream, "PNG", compress_level=3)
        with suppress(OSError):
            if not self.folder.exists():
                _prune(self.folder.parent)
            with atomic_write(cached, sync=False) as file:
                file.write(stream.getvalue())
        return stream.getvalue()

    @functools.cached_property
    def folder(self) -> Path:
        """Where they are kept: by all that decides how they look."""
        key = f"{_painter()} {len(self.scenes)} {self.seed} {self.size}"
        folder = cache_folder() / "scenes" / hashlib.sha256(key.encode()).hexdigest()[:32]
        with suppress(OSError):
            os.utime(folder)
        return folder


@functools.cache
def _painter() -> str:
    """A hash of the code that stages and paints scenes, and of who draws for it."""
    import PIL

    digest = hashlib.sha256(PIL.__version__.encode())
    for module in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(module.read_bytes())
    return digest.hexdigest()


def _prune(folder: Path) -> None:
    """Leave room for one more."""
    folders = sorted(folder.glob("*"), key=lambda entry: entry.stat().st_mtime, reverse=True)
    for entry in folders[KEPT - 1 :]:
        shutil.rmtree(entry, ignore_errors=True)


class Swap(NamedTuple):
    """A caption that is true of its image, and its twin in nearly the same words that is false of it."""

    image_id: str
    caption: int
    true: str
    false: str
    #: What is said of both parties that holds one way alone: "chase", "left".
    relation: str


def scenes_corpus(count: int = 1600, seed: int = 0, size: tuple[int, int] = STAGE) -> Corpus:
    """The embedded corpus: 5/8 of the scenes train, 1/8 each val, test and unseen.

    Args:
        count: how many scenes.
        seed: another seed, another corpus of the same kind.
        size: width and height of the pictures in pixels, 4 : 3.
    """
    width, height = size
    if width * STAGE[1] != height * STAGE[0] or width < 1:
        raise DeixisError(f"scenes are drawn 4 : 3, not {width} × {height}")
    if count < 0:
        raise DeixisError(f"cannot draw {count} scenes")
    numbers = {split: int(count * share) for split, share in SHARES.items()}
    numbers["train"] += count - sum(numbers.values())
    scenes: dict[str, Scene] = {}
    images: list[Image] = []
    known: set[Plan] = set()
    for split, count_of_split in numbers.items():
        for scene in _draw_split(split, count_of_split, len(images), seed, known):
            scenes[scene.id] = scene
            images.append(_image(scene, split, seed, size))
    return Corpus(images, name="scenes", pictures=ScenePictures(scenes, seed, size))


def _draw_split(split: str, wanted: int, start: int, seed: int, known: set[Plan]) -> list[Scene]:
    """Families of scenes that no split has had, with held-out pairs in `unseen` and nowhere else."""
    scenes: list[Scene] = []
    # A shirt comes up far more often than three dogs: no held-out pair may fill the split.
    so_far: Counter[tuple[str, str]] = Counter()
    quota = 1.25 * wanted / len(HELD_OUT)
    family = 0
    while len(scenes) < wanted:
        family += 1
        chance = Chance(seed, split, family)
        plan = draw_plan(chance)
        members = [plan]
        sizes = GROUP_FAMILY_SIZES if plan.event == "group" else FAMILY_SIZES
        for _ in range(chance.pick(sizes) - 1):
            sibling = vary(plan, chance)
            if sibling is not None and sibling not in members:
                members.append(sibling)
        staged: list[Plan] = []
        for member in members[: wanted - len(scenes)]:
            if staged and staged[0] != plan:
                break  # variants of a plan that is left out differ from each other in two factors
            held_out = combinations(member) & HELD_OUT
            if member in known or bool(held_out) != (split == "unseen"):
                continue
            if held_out and all(so_far[pair] >= quota for pair in held_out):
                continue
            so_far.update(held_out)
            known.add(member)
            staged.append(member)
            # Siblings share layout and backdrop, so that only the factor distinguishes them.
            layout = Chance(seed, split, family, "layout")
            scenes.append(stage(f"scene-{start + len(scenes):06d}", f"{split}-{family}", member, layout))
    return scenes


def _image(scene: Scene, split: str, seed: int, size: tuple[int, int]) -> Image:
    annotator = _Annotator(scene, size)
    captions = [annotator.caption(draft) for draft in write_captions(scene, seed)]
    return make_image(
        scene.id,
        file=f"{scene.id}.png",
        width=size[0],
        height=size[1],
        split=split,
        captions=captions,
        boxes=annotator.boxes,
        chains=annotator.chains.values(),
    )


class _Annotator:
    """Gives mentions their chains and boxes: the same things under one name, one box for one thing."""

    def __init__(self, scene: Scene, size: tuple[int, int]) -> None:
        self.scene, self.size = scene, size
        self.boxes: list[Box] = []
        self.chains: dict[object, Chain] = {}
        self._numbers: dict[tuple[str, str], int] = {}

    def caption(self, draft: Draft) -> Caption:
        tokens: list[str] = []
        phrases: list[Phrase] = []
        for item in draft.items:
            start = len(tokens)
            if isinstance(item, str):
                tokens += item.split()
                continue
            tokens += item.words.split()
            chain = NOT_VISUAL_CHAIN if item.type == NOT_VISUAL else self._chain(item).id
            phrases.append(Phrase(start, len(tokens), chain, (item.type,)))
        return make_caption(draft.text, None, phrases)

    def _chain(self, mention: Mention) -> Chain:
        key = mention.topic or (frozenset(mention.tags), mention.part)
        if key not in self.chains:
            boxes = tuple(self._box(tag, mention.part) for tag in mention.tags)
            scene = mention.type == "scene"
            self.chains[key] = Chain(str(len(self.chains) + 1), boxes, scene=scene, no_box=not boxes and not scene)
        return self.chains[key]

    def _box(self, tag: str, part: str) -> int:
        if (tag, part) not in self._numbers:
            self._numbers[tag, part] = len(self.boxes)
            self.boxes.append(box_of(self.scene.figure(tag), part, *self.size))
        return self._numbers[tag, part]


def scenes_of(corpus: Corpus) -> Mapping[str, Scene]:
    """What is in the pictures of a corpus that `scenes_corpus` made, or was cut from one: image id → scene."""
    return _pictures(corpus).scenes


def order_swaps(corpus: Corpus) -> list[Swap]:
    """Captions with two parties whose exchange makes them false: "a dog chases a cat", "a cat chases a dog"."""
    return _swaps(corpus, "order")


def count_swaps(corpus: Corpus) -> list[Swap]:
    """Captions that count, with a twin that is off by one."""
    return _swaps(corpus, "count")


def _swaps(corpus: Corpus, twist: str) -> list[Swap]:
    pictures = _pictures(corpus)
    return [
        Swap(image.id, index, image.captions[index].text, twin.text, twin.relation)
        for image in corpus
        for index, twin in enumerate(false_twins(pictures.scenes[image.id], pictures.seed, twist))
        if twin is not None
    ]


def _pictures(corpus: Corpus) -> ScenePictures:
    if not isinstance(corpus.pictures, ScenePictures):
        raise DeixisError(f"corpus {corpus.name or '(unnamed)'} does not consist of drawn scenes")
    return corpus.pictures

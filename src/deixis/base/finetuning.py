"""Fine-tune a bundle on the captioned pictures of one person.

The backbone is frozen: a few hundred pictures would only overfit it. So every picture passes through it once, and
training takes minutes on a CPU. The pooling of maps, the embedding of cells and the text branch are trained; the text
branch also gets new words. The weights are then averaged with the former ones by the share that does best (WiSE-FT,
Wortsman et al., CVPR 2022), so that little is forgotten. One part of the pictures decides when to stop, another whether
the new model is better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from torch import Tensor

from deixis.adapters.bundles import VOCABULARY, Bundle, Manifest, Relevance
from deixis.base.bundle_export import write_bundle
from deixis.base.bundle_graphs import Networks
from deixis.base.bundle_model import bundle_settings, bundle_words
from deixis.base.bundle_networks import bundle_grounder, bundle_texts, bundle_tower
from deixis.base.finetuning_task import LEAST, FinetuningTask, Heads, Looked, look
from deixis.base.pictures_task import PictureRecipe
from deixis.base.text_tower import TextTower, TowerRecipe
from deixis.corpus import Corpus, TrainingSet, training_set
from deixis.errors import DeixisError
from deixis.text.featurizers import TextRecipe, TokenIds
from deixis.text.tokens import tokens_of
from deixis.text.vocabulary import UNKNOWN, Vocabulary
from deixis.training.run_records import make_run_plan
from deixis.training.runs import RunFolder, read_weights
from deixis.training.schedule import Clip, Cosine, Schedule
from deixis.training.trainer import Progress, train
from deixis.training.validation import retrieval_figures
from deixis.vision.tower import PictureTower

#: Shares of the pictures that decide when to stop, and whether the new model is better.
STOP, JUDGE = 0.1, 0.2
#: General pictures of either part, and the shares of what was learned that are tried.
GENERAL, SHARES = 100, (1.0, 0.75, 0.5, 0.25)
#: Points of mean recall by which general pictures may get worse.
FORGOTTEN = 2.0
#: A new word is learned that so many captions have.
OFTEN = 2


class Figures(msgspec.Struct, frozen=True):
    """Retrieval in both directions: the mean of the six recalls, and the first of either."""

    mean_recall: float
    image_to_text: float
    text_to_image: float


class Compared(msgspec.Struct, frozen=True):
    pictures: int
    before: Figures
    after: Figures

    @property
    def gain(self) -> float:
        return self.after.mean_recall - self.before.mean_recall


class Outcome(msgspec.Struct, frozen=True):
    learned_from: int
    epochs: int
    new_words: int
    #: Of what was learned, in the average with what was known before.
    share: float
    held_out: Compared
    general: Compared
    kept: bool
    verdict: str


def finetune(
    base: Bundle,
    corpus: Corpus,
    general: Corpus,
    out: Path,
    *,
    epochs: int = 30,
    seed: int = 0,
    device: torch.device | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> tuple[Outcome, Manifest | None]:
    """Teach a bundle the captioned pictures of a corpus; one that got better is written as a bundle into `out`.

    Args:
        general: what it must not forget, with the splits `val` and `test`.
    """
    device = device or torch.device("cpu")
    parts = divided(corpus, seed)
    training = training_set(parts)
    before = bundle_words(base, VOCABULARY)
    vocabulary = with_words(before, training)
    recipe = bundle_settings(base, base.manifest.towers, TowerRecipe)
    tower, texts = _towers(base, recipe, before, vocabulary)
    looked = _look_at_all(tower.to(device), vocabulary, parts, training, general, device, base.manifest.jpeg)
    backbone = tower.backbone
    del tower.backbone
    heads = Heads(tower, texts).to(device).eval()
    old = {name: _ranks(heads, looked[name]) for name in ("test", "general test")}
    learned_for, share = _learn(heads, looked, parts, Plan(epochs, seed, device, progress))
    new = {name: _ranks(heads, looked[name]) for name in old}
    held_out, known = (Compared(len(new[name][1]), old[name][0], new[name][0]) for name in old)
    better, verdict = judged(held_out, known, new["test"][1] - old["test"][1])
    count, words = len(looked["train"].starts) - 1, len(vocabulary) - len(before)
    outcome = Outcome(count, learned_for, words, share, held_out, known, better, verdict)
    if not better:
        return outcome, None
    tower.backbone = backbone
    return outcome, _write(out, base, tower.cpu(), texts.cpu(), vocabulary, recipe, corpus.name)


class Plan(NamedTuple):
    epochs: int
    seed: int
    device: torch.device
    progress: Callable[[Progress], None] | None


def _look_at_all(
    tower: PictureTower,
    vocabulary: Vocabulary,
    parts: Corpus,
    training: TrainingSet,
    general: Corpus,
    device: torch.device,
    jpeg: int,
) -> dict[str, Looked]:
    text = TokenIds(TextRecipe(kind="tokens", minimum_count=1), vocabulary)
    wanted = {
        "train": (parts, training.corpus.images),
        "val": (parts, parts.split("val").images),
        "test": (parts, parts.split("test").images),
        "general val": (general, general.split("val").images[:GENERAL]),
        "general test": (general, general.split("test").images[:GENERAL]),
    }
    return {
        name: look(tower, text, corpus, images, device, mirrored=name == "train", jpeg=jpeg)
        for name, (corpus, images) in wanted.items()
    }


def _learn(heads: Heads, looked: Mapping[str, Looked], corpus: Corpus, plan: Plan) -> tuple[int, float]:
    """Train the heads and average them with their former weights; returns the number of epochs and the share."""
    schedule = Schedule(
        epochs=plan.epochs,
        learning_rate=2e-4,
        optimizer="adamw",
        weight_decay=0.05,
        decay=Cosine(warm_up=min(1.0, plan.epochs / 2)),
        clip=Clip("norm", 3.0),
        figure="rsum",
        patience=6,
    )
    recipe = PictureRecipe(
        name="finetuning", kind="pictures", corpus=corpus.name or "own", seed=plan.seed, schedule=schedule
    )
    first = {name: value.detach().clone() for name, value in heads.state_dict().items()}
    with TemporaryDirectory(prefix="deixis-finetune-") as folder:
        with RunFolder(Path(folder) / "run", make_run_plan(recipe, corpus, [])) as run:
            task = FinetuningTask(heads, looked["train"], looked["val"], plan.seed)
            report = train(task, schedule, run, seed=plan.seed, device=plan.device, progress=plan.progress)
        learned = {name: value.to(plan.device) for name, value in read_weights(run.folder).items()}
    heads.eval()
    return report.epochs, _best_share(heads, first, learned, (looked["val"], looked["general val"]))


def _write(
    out: Path,
    base: Bundle,
    tower: PictureTower,
    texts: TextTower,
    vocabulary: Vocabulary,
    recipe: TowerRecipe,
    corpus: str,
) -> Manifest:
    tower.backbone.fuse()
    # The ImageNet classifier has no part in a tower.
    del tower.backbone._fc
    points = None if base.manifest.grounding is None else bundle_grounder(base)
    if points is not None:
        points.network.proposer.backbone.fuse()
    return write_bundle(
        out,
        Networks(tower, texts, vocabulary, points),
        recipe,
        name=f"{base.manifest.name}+{corpus or 'own'}",
        weights_sha256="",
        weights=base.manifest.weights,
        thresholds=for_words(base.manifest.thresholds, bundle_words(base, VOCABULARY), vocabulary),
        jpeg=base.manifest.jpeg,
    )


def for_words(thresholds: Relevance | None, known: Vocabulary, vocabulary: Vocabulary) -> Relevance | None:
    """The thresholds, with what words usually score in the order of another vocabulary; 0 for new words."""
    if thresholds is None or not thresholds.usual:
        return thresholds
    if len(thresholds.usual) != len(known.words):
        return msgspec.structs.replace(thresholds, usual=b"")
    usual = dict(zip(known.words, np.frombuffer(thresholds.usual, np.int8).tolist(), strict=True))
    scores = np.array([usual.get(word, 0) for word in vocabulary.words], np.int8)
    return msgspec.structs.replace(thresholds, usual=scores.tobytes())


def divided(corpus: Corpus, seed: int) -> Corpus:
    """The captioned images of a corpus with the splits train, val and test: its own, or drawn at random."""
    images = [image for image in corpus if image.captions]
    if not {"train", "val", "test"} <= {image.split for image in images}:
        order = np.random.default_rng(seed).permutation(len(images))
        stop, judge = (max(LEAST, round(share * len(images))) for share in (STOP, JUDGE))
        names = np.full(len(images), "train", object)
        names[order[:judge]], names[order[judge : judge + stop]] = "test", "val"
        images = [msgspec.structs.replace(image, split=str(name)) for image, name in zip(images, names, strict=True)]
    divided_corpus = corpus.with_images(images)
    if min(divided_corpus.splits.get(name, 0) for name in ("train", "val", "test")) < LEAST:
        raise DeixisError(
            f"corpus {corpus.name or '(unnamed)'} has {len(images)} captioned pictures; to learn, to stop and to judge "
            f"it takes {LEAST} each at the least, and a few hundred to be of use"
        )
    return divided_corpus


def with_words(known: Vocabulary, training: TrainingSet) -> Vocabulary:
    """A vocabulary with the words that occur often enough in captions beside those that it has."""
    counts = Counter(token for image in training for caption in image.captions for token in tokens_of(caption))
    new = {word: count for word, count in counts.items() if count >= OFTEN and word not in known}
    return Vocabulary({**dict(zip(known.words, known.counts, strict=True)), **new})


def judged(held_out: Compared, general: Compared, gains: Tensor) -> tuple[bool, str]:
    """Whether the new model is better, and why, in one line. `gains`: of reciprocal rank, one per held-out picture."""
    spread = float(gains.std() / len(gains) ** 0.5)
    comparison = (
        f"mean recall on {held_out.pictures} held-out pictures {_arrow(held_out)}, "
        f"on {general.pictures} general ones {_arrow(general)}"
    )
    if held_out.gain <= 0 or float(gains.mean()) <= spread:
        return False, f"Not worth keeping: no better than before by more than chance; {comparison}"
    if general.gain < -FORGOTTEN:
        return False, f"Not worth keeping: better on your pictures, but it forgot too much of others; {comparison}"
    return True, f"Better: {comparison}"


def _arrow(compared: Compared) -> str:
    return f"{compared.before.mean_recall:.1f} → {compared.after.mean_recall:.1f}"


def _towers(base: Bundle, recipe: TowerRecipe, before: Vocabulary, after: Vocabulary) -> tuple[PictureTower, TextTower]:
    """Both towers of a bundle; a new word begins as the unknown one."""
    tower, known = bundle_tower(base), bundle_texts(base)
    texts = TextTower(recipe, len(after))
    rows = [UNKNOWN if word not in before else before.encode([word])[0] for word in after.words]
    specials = list(range(len(after) - len(after.words)))
    weights = known.state_dict()
    weights["encoder.words.weight"] = weights["encoder.words.weight"][specials + rows]
    texts.load_state_dict(weights)
    return tower, texts.eval()


@torch.no_grad()
def _ranks(heads: Heads, data: Looked) -> tuple[Figures, Tensor]:
    """Figures, and the mean reciprocal rank of each picture's captions when they are asked for."""
    scores = heads.scores(data)
    recalls = retrieval_figures(scores, data.image_of)
    match = scores[data.image_of, torch.arange(scores.shape[1], device=scores.device)]
    ranks = (scores >= match).sum(0)
    images = len(data.starts) - 1
    total = torch.zeros(images, device=scores.device).index_add(0, data.image_of, 1 / ranks)
    figures = Figures(recalls["rsum"] / 6, recalls["image_to_text.r@1"], recalls["text_to_image.r@1"])
    return figures, (total / torch.bincount(data.image_of, minlength=images)).cpu()


def _best_share(
    heads: Heads, before: Mapping[str, Tensor], after: Mapping[str, Tensor], parts: Sequence[Looked]
) -> float:
    """Give the heads the average of weights that is best on own and general pictures together; returns its share."""
    trials: list[tuple[float, float, Any]] = []
    for share in SHARES:
        heads.load_state_dict({name: before[name].lerp(after[name], share) for name in before})
        mean = sum(_ranks(heads, part)[0].mean_recall for part in parts)
        trials.append((mean, share, deepcopy(heads.state_dict())))
    best = max(trials, key=lambda trial: trial[0])
    heads.load_state_dict(best[2])
    return best[1]

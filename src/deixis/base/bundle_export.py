"""Export finished runs as a bundle (`deixis.adapters.bundles`).

A run of the kind `pictures` or `base` gives both towers. Grounding comes from a `base` run or from one of the kind
`grounding`, descriptions from one of the kind `captioner` that was trained on the tower's features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import nn

from deixis.adapters.bundles import (
    CAPTIONER_VOCABULARY,
    GROUNDING_VOCABULARY,
    VOCABULARY,
    WEIGHTS,
    Bundle,
    Manifest,
    Relevance,
    Weights,
    file_record,
    open_bundle,
    read_old_bundle,
    write_manifest,
)
from deixis.adapters.weight_files import Array, WeightFile, write_weights
from deixis.base.base_task import DeixisBaseRecipe, load_grounder
from deixis.base.bundle_graphs import Networks, write_graphs
from deixis.base.bundle_model import bundle_settings, bundle_words
from deixis.base.bundle_networks import bundle_captioner, bundle_grounder, bundle_texts, bundle_tower
from deixis.base.grounding_model import GroundingModel
from deixis.base.grounding_network import GroundingRecipe
from deixis.base.pictures_task import PictureRecipe, load_text_tower
from deixis.base.text_tower import TowerRecipe
from deixis.errors import DeixisError
from deixis.papers.dvsa.captioner_model import CaptionerModel
from deixis.papers.dvsa.captioner_task import CaptionerKind, CaptioningRecipe
from deixis.text.featurizers import TokenIds
from deixis.text.vocabulary import Vocabulary
from deixis.training.loading_limits import loading
from deixis.training.run_models import load_run, read_recipe
from deixis.training.runs import read_model, read_plan, read_weights
from deixis.vision import TOWER as TOWER_PREFIX
from deixis.vision.efficientnet_lite import VARIANTS, EfficientNetLite
from deixis.vision.tower import PictureTower

CPU = torch.device("cpu")
#: Settings of grounding that no weight depends on.
FREE_SETTINGS = ("regions", "candidates", "overlap", "samples", "sharpness", "sentence_weight")


def export_bundle(
    run: Path | str,
    out: Path,
    *,
    grounding: Path | None = None,
    captioner: Path | None = None,
    name: str | None = None,
    weights: Weights = "mixed",
    side: int | None = None,
    word_weight: float | None = None,
    caption_match: float = 0.0,
    jpeg: int | None = None,
    grounding_set: Sequence[str] = (),
) -> Manifest:
    """Write finished runs as a bundle into the folder `out`.

    Args:
        run: of the kind `pictures` or `base`; or a bundle (`deixis-base`, `onnx:FOLDER`), whose networks and thresholds
            for search stay as they are, so that indexes stay valid unless `jpeg` is given.
        grounding: the run that grounds phrases; by default `run`, if it is of the kind `base`, or the bundle.
        captioner: the run that describes pictures; by default the bundle.
        name: of the bundle; by default that of the recipe.
        side: of pictures for search; by default as in training.
        word_weight: of words and cells relative to the embeddings; by default that of the recipe.
        caption_match: of the score of search, when sentences of the captioner are ranked.
        jpeg: the quality of the JPEG files that larger pictures are turned into first (`deixis.vision.crops.squash`);
            by default that of the bundle, or 0: none.
        grounding_set: `NAME=VALUE` of settings of grounding (`FREE_SETTINGS`), in place of those of training.
    """
    if (bundle := open_bundle(str(run))) is not None:
        if side is not None or word_weight is not None:
            raise DeixisError(f"{run}: the side and the word weight of a bundle stay as they are")
        return _renewed(bundle, out, grounding, captioner, name, weights, caption_match, jpeg, grounding_set)
    run = Path(run)
    model, recipe = read_model(run), read_recipe(run)
    if not isinstance(recipe, PictureRecipe):
        raise DeixisError(f"{run}: runs of the kinds 'pictures' and 'base' become bundles, not {recipe.kind!r}")
    texts, features = load_text_tower(run, recipe)
    texts.word_weight = word_weight or texts.word_weight
    if not isinstance(features, TokenIds):
        raise DeixisError(f"{run}: its text branch does not read token ids")
    points = _grounder(run if grounding is None and isinstance(recipe, DeixisBaseRecipe) else grounding)
    if points is not None:
        points.network.proposer.backbone.fuse()
        points.network.recipe = _with_settings(points.network.recipe, grounding_set)
    elif grounding_set:
        raise DeixisError(f"{run}: there is no grounding whose settings could change")
    tower = trained_tower(run, recipe)
    tower.side = side or tower.side
    networks = Networks(tower, texts, features.vocabulary, points, _captioner(captioner, tower.dim))
    return write_bundle(
        out,
        networks,
        msgspec.structs.replace(recipe.model, side=tower.side, word_weight=texts.word_weight),
        name=name or recipe.name,
        weights_sha256=model.weights_sha256,
        weights=weights,
        caption_side=recipe.model.side,
        caption_match=caption_match,
        jpeg=jpeg or 0,
    )


def _renewed(
    bundle: Bundle,
    out: Path,
    grounding: Path | None,
    captioner: Path | None,
    name: str | None,
    weights: Weights,
    caption_match: float,
    jpeg: int | None,
    grounding_set: Sequence[str],
) -> Manifest:
    """A bundle whose grounding and captioner come from other runs, if given, or that sees other pictures."""
    manifest = bundle.manifest
    tower = bundle_tower(bundle)
    points = _grounder(grounding) if grounding or manifest.grounding is None else bundle_grounder(bundle)
    speaks = _captioner(captioner, tower.dim) if captioner or manifest.captioner is None else bundle_captioner(bundle)
    tower.backbone.fuse()
    if points is not None:
        points.network.proposer.backbone.fuse()
        points.network.recipe = _with_settings(points.network.recipe, grounding_set)
    del tower.backbone._fc
    return write_bundle(
        out,
        Networks(tower, bundle_texts(bundle), bundle_words(bundle, VOCABULARY), points, speaks),
        bundle_settings(bundle, manifest.towers, TowerRecipe),
        name=name or manifest.name,
        weights_sha256=manifest.weights_sha256,
        weights=weights,
        thresholds=manifest.thresholds,
        caption_side=tower.side,
        caption_match=caption_match,
        jpeg=manifest.jpeg if jpeg is None else jpeg,
        like=bundle.file(WEIGHTS) if jpeg is None else None,
    )


def write_bundle(
    out: Path,
    networks: Networks,
    towers: TowerRecipe,
    *,
    name: str,
    weights_sha256: str,
    weights: Weights,
    thresholds: Relevance | None = None,
    caption_side: int | None = None,
    caption_match: float = 0.0,
    jpeg: int = 0,
    like: Path | None = None,
) -> Manifest:
    """Write networks as a bundle.

    Args:
        weights_sha256: identifies the weights; if empty, the hash of their file.
        caption_side: of pictures for the captioner; by default that of the tower.
        caption_match, jpeg: as in `export_bundle`.
        like: a file of weights in which those that are equal are stored already.
    """
    tower, points, speaks = networks.tower, networks.grounder, networks.captioner
    arrays = {**_arrays(tower, "pictures."), **_arrays(networks.texts, "texts.")}
    words = {VOCABULARY: networks.vocabulary}
    if points is not None:
        arrays |= _arrays(points.network, "grounding.")
        words[GROUNDING_VOCABULARY] = points.vocabulary
    if speaks is not None:
        arrays |= _arrays(speaks.network, "captioner.")
        words[CAPTIONER_VOCABULARY] = speaks.vocabulary
    out.mkdir(parents=True, exist_ok=True)
    write_weights(out / WEIGHTS, arrays, weights, like)
    files = [WEIGHTS, *write_graphs(out, networks, WeightFile(out / WEIGHTS)), *_write_words(out, words)]
    records = {file: file_record(out / file) for file in files}
    manifest = Manifest(
        name=name,
        weights_sha256=weights_sha256 or records[WEIGHTS].sha256,
        weights=weights,
        dim=tower.dim,
        side=tower.side,
        cells=tower.cell_count,
        cell_dim=tower.fine,
        files=records,
        jpeg=jpeg,
        towers=msgspec.to_builtins(towers),
        grounding=None if points is None else msgspec.to_builtins(points.network.recipe),
        captioner=None if speaks is None else _settings(speaks, caption_side or tower.side, caption_match),
        thresholds=thresholds,
    )
    write_manifest(out, manifest)
    return manifest


def upgrade_bundle(folder: Path) -> Manifest:
    """Write the graphs of a bundle anew, in place, from its weights; one of the earlier version becomes one of this."""
    bundle = read_old_bundle(folder)
    manifest = bundle.manifest
    with loading(folder):
        tower = bundle_tower(bundle)
        tower.backbone.fuse()
        grounder = None if manifest.grounding is None else bundle_grounder(bundle)
        if grounder is not None:
            grounder.network.proposer.backbone.fuse()
        captioner = None if manifest.captioner is None else bundle_captioner(bundle)
        networks = Networks(tower, bundle_texts(bundle), bundle_words(bundle, VOCABULARY), grounder, captioner)
    names = write_graphs(folder, networks, WeightFile(bundle.file(WEIGHTS)))
    files = {name: record for name, record in manifest.files.items() if not name.endswith(".onnx")}
    files |= {name: file_record(folder / name) for name in names}
    manifest = msgspec.structs.replace(manifest, files=files)
    write_manifest(folder, manifest)
    return manifest


def trained_tower(run: Path, recipe: PictureRecipe) -> PictureTower:
    """The picture tower of a run with its trained weights, batch norm folded."""
    model, prefix = recipe.model, "tower."
    network = EfficientNetLite(VARIANTS[model.backbone])
    tower = PictureTower(network, model.backbone, model.side, model.dim, model.queries, model.fine)
    stored = read_weights(run)
    tower.load_state_dict({key.removeprefix(prefix): value for key, value in stored.items() if key.startswith(prefix)})
    tower.eval().backbone.fuse()
    # The ImageNet classifier is not used.
    del tower.backbone._fc
    return tower


def _with_settings(recipe: GroundingRecipe, settings: Sequence[str]) -> GroundingRecipe:
    """The recipe with settings given as `NAME=VALUE`."""
    changed: dict[str, object] = msgspec.to_builtins(recipe)
    for setting in settings:
        name, _, value = setting.partition("=")
        if name not in FREE_SETTINGS:
            raise DeixisError(f"{setting!r} is no setting of grounding to change; known: {', '.join(FREE_SETTINGS)}")
        try:
            changed[name] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            raise DeixisError(f"{setting!r}: the value is not a number") from None
    try:
        return msgspec.convert(changed, GroundingRecipe)
    except msgspec.ValidationError as fault:
        raise DeixisError(f"{', '.join(settings)}: {fault}") from None


def _grounder(run: Path | None) -> GroundingModel | None:
    if run is None:
        return None
    recipe = read_recipe(run)
    model = load_grounder(run, recipe, CPU) if isinstance(recipe, DeixisBaseRecipe) else load_run(run, CPU)
    if not isinstance(model, GroundingModel):
        raise DeixisError(f"{run}: runs of the kinds 'grounding' and 'base' point at phrases, not {recipe.kind!r}")
    return model


def _captioner(run: Path | None, dim: int) -> CaptionerModel | None:
    if run is None:
        return None
    recipe = read_recipe(run)
    if not isinstance(recipe, CaptioningRecipe) or recipe.pairs != "pictures":
        raise DeixisError(f"{run}: is not a captioner of whole pictures")
    if not any(features.backbone.startswith(TOWER_PREFIX) for features in read_plan(run).features):
        raise DeixisError(f"{run}: was not trained on features of a tower ({TOWER_PREFIX}…)")
    with loading(run):
        return CaptionerKind().load_model(run, recipe, CPU)


def _settings(model: CaptionerModel, side: int, match: float) -> dict[str, Any]:
    network = model.network
    kinds = {"rnn": nn.RNN, "lstm": nn.LSTM}
    return {
        "model": {
            "cell": next(name for name, kind in kinds.items() if isinstance(network.recurrence, kind)),
            "word": network.words.embedding_dim,
            "hidden": network.recurrence.hidden_size,
        },
        "decoding": msgspec.to_builtins(model.decoding),
        "channels": network.picture.in_features,
        "side": side,
        # As in the features of a tower.
        "resampling": "bilinear",
        "match": match,
    }


def _arrays(network: nn.Module, prefix: str) -> dict[str, Array]:
    values = {name: value.detach().float().cpu().numpy() for name, value in network.state_dict().items()}
    for name, value in values.items():
        if not np.isfinite(value.astype(np.float16)).all():
            raise DeixisError(f"the weights {prefix}{name} have values that do not fit into float16")
    return {f"{prefix}{name}": value for name, value in values.items()}


def _write_words(out: Path, words: Mapping[str, Vocabulary]) -> list[str]:
    """Write the vocabularies that differ from that of the text branch; returns their names."""
    written = [
        name for name, vocabulary in words.items() if name == VOCABULARY or vocabulary.words != words[VOCABULARY].words
    ]
    for name in written:
        words[name].save(out / name)
    return written

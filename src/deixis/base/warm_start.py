"""Begin training with the weights of a bundle (`deixis-base`, or one that `deixis export` wrote).

A bundle's batch norms are folded into its convolutions. Unfolded, they do nothing; in training they would normalize by
batch statistics and change what the network computes. So their statistics are measured on some pictures first, and
each norm is set to give back what it takes away.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from deixis.adapters.bundles import GROUNDING_VOCABULARY, VOCABULARY, Bundle, open_bundle
from deixis.base.bundle_model import bundle_words
from deixis.base.bundle_networks import bundle_grounder, bundle_texts, bundle_tower
from deixis.base.grounding_model import GroundingModel
from deixis.base.grounding_network import GroundingNetwork, GroundingRecipe
from deixis.base.pictures_task import TowerModule
from deixis.errors import DeixisError
from deixis.text.vocabulary import SPECIALS, Vocabulary
from deixis.vision.efficientnet_lite import VARIANTS, EfficientNetLite
from deixis.vision.proposer import Proposer


def start_from_bundle(
    name: str, module: TowerModule, grounding: GroundingNetwork, vocabulary: Vocabulary, pictures: Iterable[Tensor]
) -> None:
    """Fill a tower, a text branch and a grounding network with a bundle's weights.

    Words that the bundle does not know, and layers that it does not have, keep their first weights; added layers of
    attention begin by doing nothing.

    Args:
        name: `deixis-base@HASH` or `onnx:FOLDER@HASH`; the hash, which may be cut short, is that of the manifest's
            `weights_sha256`, so that a bundle with other weights is refused.
        module: its tower's backbone is also the grounding network's.
        vocabulary: of both text branches.
        pictures: batches of normalized pictures `(batch, 3, side, side)`, to measure the batch norms on.
    """
    bundle = _open(name)
    tower, texts, points = bundle_tower(bundle), bundle_texts(bundle), bundle_grounder(bundle).network
    _fill(module.tower, tower.state_dict(), name)
    words = bundle_words(bundle, VOCABULARY)
    if bundle_words(bundle, GROUNDING_VOCABULARY).words != words.words:
        raise DeixisError(f"{name}: its two text branches know different words")
    weights = texts.state_dict()
    known = weights.pop("encoder.words.weight")
    _fill(module.texts, weights, name)
    vectors = module.texts.encoder.words.weight
    rows = [row for row, word in enumerate(vocabulary.words, len(SPECIALS)) if word in words]
    ids = words.encode([vocabulary.words[row - len(SPECIALS)] for row in rows])
    with torch.no_grad():
        vectors[: len(SPECIALS)] = known[: len(SPECIALS)].to(vectors)
        vectors[rows] = known[ids].to(vectors)
    # Which words ask for colours is set with the words.
    shared = ("words.", "proposer.backbone.", "colours.asks")
    points_state = {key: value for key, value in _wanted(points, grounding).items() if not key.startswith(shared)}
    _fill(grounding, points_state, name)
    _silence_new_layers(grounding, points_state)
    measure_batch_norms(module.tower.backbone, pictures)


def start_grounder(name: str, recipe: GroundingRecipe, seed: int) -> GroundingModel:
    """A bundle's grounding network, its words and its backbone in a network of this recipe.

    Its batch norms do nothing, so the backbone must stay frozen, or be measured (`measure_batch_norms`).

    Args:
        name: as in `start_from_bundle`.
        seed: of layers that the bundle does not have.
    """
    points = bundle_grounder(_open(name))
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        trunk = Proposer(EfficientNetLite(VARIANTS[recipe.backbone]), recipe.backbone, points.network.proposer.width)
        network = GroundingNetwork(recipe, trunk, *points.network.words.weight.shape)
    known = _wanted(points.network, network)
    _fill(network, known, name)
    _silence_new_layers(network, known)
    return GroundingModel(network, points.vocabulary)


def _open(name: str) -> Bundle:
    folder, _, weights = name.rpartition("@")
    bundle = open_bundle(folder)
    if bundle is None or not weights:
        raise DeixisError(f"start: {name!r} is no bundle; write deixis-base@HASH or onnx:FOLDER@HASH")
    sha256 = bundle.manifest.weights_sha256
    if not sha256.startswith(weights):
        raise DeixisError(
            f"start: {folder} has weights {sha256[:12]}, the recipe begins with {weights}; give the bundle with these "
            f"by --set start=onnx:FOLDER@{weights}"
        )
    return bundle


def _fill(network: nn.Module, weights: dict[str, Tensor], name: str) -> None:
    try:
        wrong = network.load_state_dict(weights, strict=False).unexpected_keys
    except RuntimeError as fault:
        raise DeixisError(f"start: {name!r} has other networks ({str(fault).splitlines()[-1].strip()})") from None
    if wrong:
        raise DeixisError(f"start: {name!r} has weights that this recipe has no place for: {wrong[0]}")


def _wanted(known: GroundingNetwork, network: GroundingNetwork) -> dict[str, Tensor]:
    """The weights of a known network, without those of colours if the other compares none.

    Colours have a score of their own, on which no other weight depends.
    """
    unwanted = ("colours.",) if network.colours is None else ()
    return {key: value for key, value in known.state_dict().items() if not key.startswith(unwanted)}


def _silence_new_layers(network: GroundingNetwork, known: dict[str, Tensor]) -> None:
    """Layers of attention are added to their input: with zeros at their end they change nothing at first."""
    for name, part in network.named_modules():
        is_last = name.endswith((".attention.out", ".forward_network.3", ".to_regions.out", ".to_phrases.out"))
        if is_last and isinstance(part, nn.Linear) and f"{name}.weight" not in known:
            nn.init.zeros_(part.weight)
            nn.init.zeros_(part.bias)


@torch.no_grad()
def measure_batch_norms(network: EfficientNetLite, pictures: Iterable[Tensor]) -> None:
    """Set the running statistics of batch norms to those of pictures, and their weights so that nothing changes.

    The network must be in evaluation mode while it is measured, and is left as it was.
    """
    norms = [part for part in network.modules() if isinstance(part, nn.BatchNorm2d)]
    sums = {norm: torch.zeros(3, norm.num_features, dtype=torch.float64) for norm in norms}

    def add(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        values = inputs[0].double().transpose(0, 1).flatten(1)
        count = torch.full((len(values),), float(values.shape[1]), dtype=torch.float64, device=values.device)
        sums[norm] += torch.stack([count, values.sum(1), values.square().sum(1)]).cpu()  # type: ignore[index]

    training = network.training
    network.eval()
    hooks = [norm.register_forward_pre_hook(add) for norm in norms]
    for batch in pictures:
        network.map(batch)
    for hook in hooks:
        hook.remove()
    network.train(training)
    for norm in norms:
        count, total, squares = sums[norm].to(norm.weight.device)
        mean = total / count.clamp(min=1)
        variance = (squares / count.clamp(min=1) - mean.square()).clamp(min=1e-4)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        # As it was: scale · x + shift, in terms of the statistics so far.
        scale = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
        shift = norm.bias.double() - norm.running_mean.double() * scale
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(variance)
        norm.weight.copy_(scale * (variance + norm.eps).sqrt())
        norm.bias.copy_(shift + mean * scale)

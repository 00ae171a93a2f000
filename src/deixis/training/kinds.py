"""The kinds of training: which class each is. Papers and the base model are named here and nowhere else above them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deixis.training.combining import Combination
    from deixis.training.kind import Kind

#: The `kind` of a recipe → its class, "module:Class", imported when a recipe asks for it.
KINDS: dict[str, str] = {
    "alignment": "deixis.papers.dvsa.task:AlignmentKind",
    "base": "deixis.base.base_task:DeixisBaseKind",
    "captioner": "deixis.papers.dvsa.captioner_task:CaptionerKind",
    "cca": "deixis.papers.entities_cca.task:CCAKind",
    "concept-pictures": "deixis.papers.concepts_order.tuned_concepts_task:ConceptPicturesKind",
    "concepts": "deixis.papers.concepts_order.concepts_task:ConceptsKind",
    "concepts-order": "deixis.papers.concepts_order.task:ConceptsOrderKind",
    "grounding": "deixis.base.grounding_task:GroundingKind",
    "hm-lstm": "deixis.papers.hm_lstm.task:HMLSTMKind",
    "joint": "deixis.papers.two_branch.joint_task:JointKind",
    "order-pictures": "deixis.papers.concepts_order.order_pictures_task:OrderPicturesKind",
    "phrases": "deixis.papers.two_branch.phrases_task:PhrasesKind",
    "pictures": "deixis.base.pictures_task:PicturesKind",
    "sentences": "deixis.papers.two_branch.task:SentencesKind",
}

#: Table rows that two runs fill together.
COMBINATIONS: tuple[str, ...] = (
    "deixis.papers.entities_cca.weighted_distance:COMBINATION",
    "deixis.papers.two_branch.combined_distance:COMBINATION",
)


def kind_of(name: str) -> Kind[Any]:
    """The kind of this name, one of `KINDS`."""
    kind: Kind[Any] = _resolve(KINDS[name])()
    return kind


def combinations() -> list[Combination]:
    """All rows that two runs fill together."""
    return [_resolve(path) for path in COMBINATIONS]


def _resolve(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)

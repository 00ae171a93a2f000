"""Metrics as functions on arrays, the protocols built on them, and the results and tables they give.

The functions below take plain arrays (NumPy, lists, CPU tensors) and return plain numbers; each module is imported when
one of its functions is first used. Protocols, which run a model over a corpus, are in the modules of this package.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deixis.metrics.box_recall import localization_recall, upper_bound
    from deixis.metrics.caption_metrics import bleu, caption_scores, cider_d, rouge_l, tokenize_caption
    from deixis.metrics.precision import average_precision
    from deixis.metrics.presence import presence_precision
    from deixis.metrics.ranking import embedding_recall_at_k, random_recall_at_k, recall_at_k
    from deixis.metrics.region_phrase_ranking import region_phrase_recall
    from deixis.metrics.text_blind import largest_proposal, proposal_order, whole_image

_MODULE_OF = {
    "average_precision": "precision",
    "bleu": "caption_metrics",
    "caption_scores": "caption_metrics",
    "cider_d": "caption_metrics",
    "embedding_recall_at_k": "ranking",
    "largest_proposal": "text_blind",
    "localization_recall": "box_recall",
    "presence_precision": "presence",
    "proposal_order": "text_blind",
    "random_recall_at_k": "ranking",
    "recall_at_k": "ranking",
    "region_phrase_recall": "region_phrase_ranking",
    "rouge_l": "caption_metrics",
    "tokenize_caption": "caption_metrics",
    "upper_bound": "box_recall",
    "whole_image": "text_blind",
}

__all__ = [
    "average_precision",
    "bleu",
    "caption_scores",
    "cider_d",
    "embedding_recall_at_k",
    "largest_proposal",
    "localization_recall",
    "presence_precision",
    "proposal_order",
    "random_recall_at_k",
    "recall_at_k",
    "region_phrase_recall",
    "rouge_l",
    "tokenize_caption",
    "upper_bound",
    "whole_image",
]


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        return getattr(import_module(f"deixis.metrics.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module 'deixis.metrics' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

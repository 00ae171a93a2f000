"""Deixis matches pictures and words. Names are imported when first used, so that `import deixis` stays light."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deixis import metrics
    from deixis.corpus import (
        Box,
        Caption,
        Chain,
        Corpus,
        Image,
        Phrase,
        TrainingSet,
        concat,
        cut,
        join,
        open_corpus,
        training_set,
        write_corpus,
    )
    from deixis.errors import CannotError, DeixisError, InputError, LeakError
    from deixis.features.store import FeatureStore
    from deixis.loading import load_model
    from deixis.metrics.evaluation import evaluate
    from deixis.metrics.results import Result
    from deixis.model import Model
    from deixis.papers.concepts_order.loss import structured_ranking
    from deixis.papers.concepts_order.network import ConceptsOrderNetwork
    from deixis.papers.dvsa.captioner import Captioner
    from deixis.papers.dvsa.loss import max_margin
    from deixis.papers.dvsa.network import AlignmentNetwork
    from deixis.papers.entities_cca.cca import NormalizedCCA
    from deixis.papers.hm_lstm.loss import contrastive_loss
    from deixis.papers.hm_lstm.network import HMLSTM
    from deixis.papers.two_branch.loss import ranking_loss
    from deixis.papers.two_branch.network import SimilarityNetwork, TwoBranchEmbedding
    from deixis.search.engine import SearchEngine
    from deixis.training.running import train

__version__ = "0.2.0"

#: Where each public name is defined.
_HOMES = {
    # Datasets.
    "deixis.corpus": (
        "Box",
        "Caption",
        "Chain",
        "Corpus",
        "Image",
        "Phrase",
        "TrainingSet",
        "concat",
        "cut",
        "join",
        "open_corpus",
        "training_set",
        "write_corpus",
    ),
    "deixis.features.store": ("FeatureStore",),
    # Models: open one, train one, evaluate one, search photos with one.
    "deixis.loading": ("load_model",),
    "deixis.model": ("Model",),
    "deixis.training.running": ("train",),
    "deixis.metrics.evaluation": ("evaluate",),
    "deixis.metrics.results": ("Result",),
    "deixis.search.engine": ("SearchEngine",),
    # The papers' networks and losses.
    "deixis.papers.entities_cca.cca": ("NormalizedCCA",),
    "deixis.papers.two_branch.network": ("SimilarityNetwork", "TwoBranchEmbedding"),
    "deixis.papers.two_branch.loss": ("ranking_loss",),
    "deixis.papers.hm_lstm.network": ("HMLSTM",),
    "deixis.papers.hm_lstm.loss": ("contrastive_loss",),
    "deixis.papers.concepts_order.network": ("ConceptsOrderNetwork",),
    "deixis.papers.concepts_order.loss": ("structured_ranking",),
    "deixis.papers.dvsa.network": ("AlignmentNetwork",),
    "deixis.papers.dvsa.loss": ("max_margin",),
    "deixis.papers.dvsa.captioner": ("Captioner",),
    "deixis.errors": ("CannotError", "DeixisError", "InputError", "LeakError"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "HMLSTM",
    "AlignmentNetwork",
    "Box",
    "CannotError",
    "Caption",
    "Captioner",
    "Chain",
    "ConceptsOrderNetwork",
    "Corpus",
    "DeixisError",
    "FeatureStore",
    "Image",
    "InputError",
    "LeakError",
    "Model",
    "NormalizedCCA",
    "Phrase",
    "Result",
    "SearchEngine",
    "SimilarityNetwork",
    "TrainingSet",
    "TwoBranchEmbedding",
    "__version__",
    "concat",
    "contrastive_loss",
    "cut",
    "evaluate",
    "join",
    "load_model",
    "max_margin",
    "metrics",
    "open_corpus",
    "ranking_loss",
    "structured_ranking",
    "train",
    "training_set",
    "write_corpus",
]


def __getattr__(name: str) -> Any:
    if name == "metrics":
        return import_module("deixis.metrics")
    if name in _HOME_OF:
        return getattr(import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'deixis' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

"""Deixis matches pictures and words. Names are imported when first used, so that `import deixis` stays light."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from deixis.loading import load_model
    from deixis.model import Model
    from deixis.search.engine import SearchEngine
    from deixis.training.train_recipe import train

__version__ = "0.1.0"

_HOMES = {
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
    "deixis.errors": ("CannotError", "DeixisError", "InputError", "LeakError"),
    "deixis.loading": ("load_model",),
    "deixis.model": ("Model",),
    "deixis.search.engine": ("SearchEngine",),
    "deixis.training.train_recipe": ("train",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Box",
    "CannotError",
    "Caption",
    "Chain",
    "Corpus",
    "DeixisError",
    "Image",
    "InputError",
    "LeakError",
    "Model",
    "Phrase",
    "SearchEngine",
    "TrainingSet",
    "__version__",
    "concat",
    "cut",
    "join",
    "load_model",
    "open_corpus",
    "train",
    "training_set",
    "write_corpus",
]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'deixis' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

"""A kind of training: its recipes, the features it needs, what is trained, how a run is loaded and evaluated.

Every paper's folder has a `Kind` subclass for each kind of recipe, next to the task that it trains;
`deixis.training.kinds` lists them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from deixis.training.inputs import find_store
from deixis.training.recipe import FitRecipe

if TYPE_CHECKING:
    import torch

    from deixis.corpus import Corpus
    from deixis.features.feature_recipe import FeatureRecipe
    from deixis.features.store import FeatureStore
    from deixis.metrics.protocols import Pictures
    from deixis.model import Model
    from deixis.training.run_protocols import Evaluation, RunProtocol
    from deixis.training.running import Fits
    from deixis.training.task import Task

R = TypeVar("R", bound=FitRecipe)


class Kind(ABC, Generic[R]):
    """Base class of all kinds of training. A kind has no state: everything it needs is in the recipe."""

    #: The type of its recipes.
    recipe_type: ClassVar[type[FitRecipe]]
    #: Several processes can train a recipe together (torchrun).
    distributed: ClassVar[bool] = False
    #: A finished run is used with features of the network that it trained, not with those it learned from.
    makes_features: ClassVar[bool] = False

    @abstractmethod
    def features(self, recipe: R, run: Path | None = None) -> list[FeatureRecipe]:
        """The features that a recipe learns from or, given the folder of its finished run, that the run is used with.

        Empty where it learns from the pictures themselves.
        """

    @abstractmethod
    def task(self, recipe: R, corpus: Corpus, stores: Sequence[FeatureStore], device: torch.device) -> Task[Any] | Fits:
        """What the trainer trains, or what is fitted in one go.

        Args:
            recipe: all settings.
            corpus: the whole corpus, of which the training and the validation split are read.
            stores: feature stores of it, as `features` asks for them.
            device: where it is trained.
        """

    @abstractmethod
    def load_model(self, folder: Path, recipe: R, device: torch.device) -> Model:
        """The model of a finished run."""

    @abstractmethod
    def protocols(self, evaluation: Evaluation[R]) -> Sequence[RunProtocol]:
        """The protocols that apply to a finished run, in the order of their results."""

    def training_sizes(self, run: Path) -> dict[str, Any]:
        """How a run was trained, for its first result: `training_pairs`, mean counts of a `batch`, `chosen` values."""
        return {}

    def published_batch(self, recipe: R) -> Mapping[str, str] | None:
        """The paper's mean counts of a batch, for the model card; None: batches are not counted."""
        return None

    def by_regions(self, recipe: R) -> bool:
        """The model needs a picture's regions: the vector of the whole picture is the one stored with them."""
        return False

    def regions_kept(self, recipe: R) -> int | None:
        """How many regions of a picture, the first ones, the model is given; None: all."""
        return None

    def pictures(self, recipe: R, corpus: Corpus, split: str | None, stores: Sequence[FeatureStore]) -> Pictures:
        """The images of a split with the features that a finished run takes for retrieval."""
        from deixis.metrics.protocols import Pictures

        boxes = recipe.learns_from_boxes
        return Pictures(
            corpus,
            split,
            find_store(stores, "proposals" if self.by_regions(recipe) else "image"),
            learned_from_boxes=boxes,
            backbone_saw_boxes=boxes and self.makes_features,
            regions_kept=self.regions_kept(recipe),
        )

    def check_corpus(self, recipe: R, corpus: Corpus) -> None:
        """Raise a `DeixisError` if a corpus is too small for a recipe. Called before any picture is read."""

"""The captioner as a model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from deixis.adapters.phrase_bank import best_regions
from deixis.errors import DeixisError
from deixis.model import (
    Description,
    ImageFeatures,
    ImageInput,
    Text,
    Tokens,
    as_box,
    as_tokens,
    regions_of,
)
from deixis.papers.dvsa.captioner import Array, Captioner, DecodingRecipe, captioner_input, text_ids
from deixis.text.vocabulary import END, Vocabulary
from deixis.training.feature_model import FeatureModel


class CaptionerModel(FeatureModel):
    """Describes pictures and regions, and ranks sentences by their likelihood.

    Args:
        background: `(pictures, channels)` inputs of some training pictures, to estimate p(text). Texts are ranked by
            p(text | picture) / p(text), as in m-RNN; otherwise short and common ones would fit every picture best.
        context: inputs are regions concatenated with the vector of the whole picture.
    """

    def __init__(
        self,
        network: Captioner,
        vocabulary: Vocabulary,
        decoding: DecodingRecipe,
        background: Tensor,
        device: torch.device,
        *,
        context: bool = False,
    ) -> None:
        super().__init__(device)
        self.network, self.vocabulary, self.decoding = network.eval().to(device), vocabulary, decoding
        self.prior_inputs, self.context = background.float().to(device), context

    def describe(self, image: ImageInput, count: int = 3) -> list[Description]:
        """Scores are log probabilities, normalized by `decoding.length_power`."""
        return self.describe_all([image], count)[0]

    def describe_all(self, images: Sequence[ImageInput], count: int = 1) -> list[list[Description]]:
        return [
            [Description(" ".join(tokens), score, "generation") for tokens, score in spoken]
            for spoken in self._spoken(self._inputs(images), count)
        ]

    def describe_regions(self, image: ImageInput, count: int = 3, most: int | None = None) -> list[list[Description]]:
        """With `most`, regions are ranked by p(text | region) / p(text); by likelihood alone, texts that fit every
        region ("a man") would come first. A sentence is used for its best region only.
        """
        features = self.look(image)
        regions, boxes = regions_of(features)
        if not len(regions):
            return []
        spoken = self._spoken(captioner_input(regions, features.image, self.context), count)
        described = [
            [Description(" ".join(tokens), score, "generation", as_box(box)) for tokens, score in sentences]
            for sentences, box in zip(spoken, boxes, strict=True)
        ]
        if most is None:
            return described
        first = [tuple(sentences[0][0]) if sentences else () for sentences in spoken]
        fits = self.fit_of_regions(features, first)
        used: set[Tokens] = {()}
        for region in np.argsort(-fits, kind="stable").tolist():
            if first[region] in used:
                described[region] = []
            used.add(first[region])
        return best_regions(boxes, described, fits, most)

    def fit_of_regions(self, image: ImageFeatures, texts: Sequence[Tokens]) -> Array:
        """`(regions,)`: log p(text | region) − log p(text), for one text per region."""
        rows = self._send(captioner_input(regions_of(image)[0], image.image, self.context))
        ids = torch.from_numpy(text_ids(self.vocabulary, texts)).to(self._device)
        with torch.no_grad():
            likelihood = self.network.log_likelihood(rows, ids)
        different, index = np.unique(ids.cpu().numpy(), axis=0, return_inverse=True)
        prior = self._prior(torch.from_numpy(different).to(self._device))
        fits: Tensor = likelihood - prior[torch.from_numpy(index.reshape(-1)).to(self._device)]
        return fits.cpu().numpy()

    def score(self, images: Sequence[ImageInput], texts: Sequence[Text]) -> Array:
        """log p(text | picture) − log p(text), where p(text) is the mean over the background."""
        ids = self._ids(texts)
        likelihood = self.network.score_all(self._send(self._inputs(images)), ids)
        return (likelihood - self._prior(ids)).cpu().numpy()

    def _prior(self, ids: Tensor) -> Tensor:
        """`(texts,)`: log p(text)."""
        return self.network.score_all(self.prior_inputs, ids).logsumexp(0) - float(np.log(len(self.prior_inputs)))

    def log_likelihood(self, images: Sequence[ImageInput], texts: Sequence[Text]) -> Array:
        return self.network.score_all(self._send(self._inputs(images)), self._ids(texts)).cpu().numpy()

    def unknown_words(self, text: Text) -> list[str]:
        return [token for token in as_tokens(text) if token not in self.vocabulary]

    def _ids(self, texts: Sequence[Text]) -> Tensor:
        return torch.from_numpy(text_ids(self.vocabulary, [as_tokens(text) for text in texts])).to(self._device)

    def _inputs(self, images: Sequence[ImageInput]) -> Array:
        features = self.features_of(images)
        return np.concatenate([captioner_input(stored.image[None], stored.image, self.context) for stored in features])

    def neighbours(self, word: str, count: int) -> list[tuple[str, float]]:
        """The words whose vectors have the largest cosine with a word's, and these cosines."""
        if word not in self.vocabulary:
            raise DeixisError(f"the vocabulary has no word {word!r}")
        vectors = functional.normalize(self.network.words.weight.detach(), dim=1)
        cosines = vectors @ vectors[self.vocabulary.encode([word])[0]]
        # Without special tokens and the word itself.
        cosines[: END + 1] = -torch.inf
        cosines[self.vocabulary.encode([word])[0]] = -torch.inf
        best = cosines.topk(min(count, len(self.vocabulary.words) - 1))
        return [(self.vocabulary.token(i), v) for i, v in zip(best.indices.tolist(), best.values.tolist(), strict=True)]

    def _spoken(self, rows: Array, count: int) -> list[list[tuple[Tokens, float]]]:
        spoken = self.network.speak(self._send(rows), self.decoding, count)
        return [[(self.vocabulary.decode(words), score) for words, score in beam] for beam in spoken]

    def _send(self, rows: Array) -> Tensor:
        return torch.from_numpy(np.array(rows, np.float32)).to(self._device)

"""Semantic concepts and order (section 3): concepts and context of a picture are fused, and generate its sentence.

`GatedFusion` is eq. 2, `SentenceGenerator` eq. 3. A sentence is the last state of an LSTM (section 3.1). Concepts come
from `concepts.py`; losses are in `loss.py`.

Readings:
- Eq. 3: as printed, a word is predicted from a state that has already read it. Here the state has read the words before
  it, beginning with a start token, and the last word to predict is the end token.
- Eq. 3: F is D × G, but a state has H ≠ D numbers, so Fᵀ follows a linear map H → D.
- Eq. 2: the context vector is normalized to unit length first; concepts are confidences and are not normalized.

Not in the paper: `centred` context, and a learned factor on the generator's initial state (`scaled_state`).
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from msgspec import Meta, Struct
from torch import Tensor, nn
from torch.nn import functional as F

from deixis.features.centring import centred
from deixis.text.beam_search import Spoken, State, beam_search
from deixis.text.recurrent import RecurrentEncoder, RecurrentRecipe, Share, flat_words, read
from deixis.text.vocabulary import END, PAD, START, UNKNOWN

#: Width of beam search.
WIDTH = 5


class OrderRecipe(Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes of section 4.2, the fusion, and whether both LSTMs share word vectors ("E")."""

    hidden: Annotated[int, Meta(ge=1)] = 1024
    word: Annotated[int, Meta(ge=1)] = 300
    #: Maximum number of words in a sentence.
    longest: Annotated[int, Meta(ge=1)] = 50
    #: If there are concepts and context: "gate" is eq. 2, "sum" is p̂ + x̂.
    fusion: Literal["gate", "sum"] = "gate"
    shared_words: bool = False
    #: Dropout of word vectors and of the states before the output layer.
    dropout: Share = 0.0
    #: The same of the generator alone; None: as `dropout`.
    generator_dropout: Share | None = None
    #: h_0 = a v with a learned factor a, initially √H. A unit vector of H = 1024 numbers has about 0.03 in each, little
    #: beside the word vectors.
    scaled_state: bool = False
    #: Use the direction of the context minus the mean direction (`deixis.features.centring`).
    centred: bool = False


class GatedFusion(nn.Module):
    """Eq. 2: v = t ⊙ p̂ + (1 − t) ⊙ x̂ of concepts p `(images, K)` and context x `(images, I)`; v is `(images, H)`.

    With "sum", v = p̂ + x̂; with concepts or context alone, v = p̂ or v = x̂.

    Args:
        centre: `(context,)` the mean direction of the context, which is subtracted; None: nothing is.
    """

    def __init__(self, concepts: int, context: int, hidden: int, fusion: str, centre: Tensor | None = None) -> None:
        super().__init__()
        self.centre = None if centre is None else nn.Buffer(centre.clone())
        self.concepts = nn.Linear(concepts, hidden, bias=False) if concepts else None  # W_l
        self.context = nn.Linear(context, hidden, bias=False) if context else None  # W_g
        gated = bool(concepts and context) and fusion == "gate"
        self.concept_gate = nn.Linear(concepts, hidden, bias=False) if gated else None  # U_l
        self.context_gate = nn.Linear(context, hidden, bias=False) if gated else None  # U_g

    def forward(self, concepts: Tensor | None, context: Tensor | None) -> Tensor:
        projections = []
        if self.concepts is not None and concepts is not None:
            projections.append(F.normalize(self.concepts(concepts)))  # p̂
        if self.context is not None and context is not None:
            context = F.normalize(context) if self.centre is None else centred(context, self.centre)
            projections.append(F.normalize(self.context(context)))  # x̂
        if self.concept_gate is None or self.context_gate is None:
            return torch.stack(projections).sum(0)
        gate = torch.sigmoid(self.concept_gate(concepts) + self.context_gate(context))  # t
        return gate * projections[0] + (1 - gate) * projections[1]


def _reader(recipe: OrderRecipe) -> RecurrentRecipe:
    return RecurrentRecipe(word=recipe.word, hidden=recipe.hidden, dropout=recipe.dropout)


class SpokenPictures(nn.Module):
    """ "ctx + sen" of Table 1: a picture is represented by a generated sentence, which an LSTM of its own reads."""

    def __init__(self, words: int, recipe: OrderRecipe) -> None:
        super().__init__()
        self.sentences = RecurrentEncoder(words, _reader(recipe))

    def forward(self, concepts: None, ids: Tensor) -> Tensor:
        read: Tensor = self.sentences(ids)
        return read


class SentenceGenerator(nn.Module):
    """Eq. 3: an LSTM whose initial hidden state is the picture's vector v generates the sentence.

    Args:
        scaled: v is multiplied by a learned factor, initially √hidden.
    """

    def __init__(self, words: nn.Embedding, hidden: int, dropout: float = 0.0, *, scaled: bool = False) -> None:
        super().__init__()
        #: F, for input words and, transposed, for output words.
        self.words = words
        self.recurrence = nn.LSTM(words.embedding_dim, hidden, batch_first=True)
        self.map = nn.Linear(hidden, words.embedding_dim)
        self.bias = nn.Parameter(torch.zeros(words.num_embeddings))
        # Never inside the recurrence.
        self.dropout = nn.Dropout(dropout)
        self.scale = nn.Parameter(torch.tensor(hidden**0.5)) if scaled else None

    def logits(self, states: Tensor) -> Tensor:
        """States `(n, hidden)` to `(n, words)`: Fᵀ (map of h) + b_p."""
        return F.linear(self.map(states), self.words.weight, self.bias)

    def begin(self, pictures: Tensor) -> State:
        """h_0 = v, or a v, and c_0 = 0, `(pictures, hidden)` each."""
        state = pictures if self.scale is None else self.scale * pictures
        return state, torch.zeros_like(state)

    def step(self, last: Tensor, state: State) -> tuple[Tensor, State]:
        """Logits of the next word `(rows, words)` after the last words `(rows,)`."""
        hidden, memory = state
        _, (hidden, memory) = self.recurrence(self.dropout(self.words(last))[:, None], (hidden[None], memory[None]))
        return self.logits(self.dropout(hidden[0])), (hidden[0], memory[0])

    def negative_log_likelihood(self, pictures: Tensor, ids: Tensor) -> Tensor:
        """L_gen = −Σ_t log P(w_t | w_0 … w_{t−1}, v) of each sentence, `(sentences,)`.

        Args:
            pictures: v, `(sentences, hidden)`.
            ids: `(sentences, longest)`, 0 = padding at the end.
        """
        targets, lengths = with_end(ids)
        words = self.dropout(self.words(torch.cat([torch.full_like(ids[:, :1], START), ids], 1)))
        hidden, memory = self.begin(pictures)
        states, _ = read(self.recurrence, words, lengths, (hidden[None], memory[None]))
        (rows, sentence), (words, _) = (
            flat_words(values, targets != PAD) for values in (self.dropout(states), targets)
        )
        losses = F.cross_entropy(self.logits(rows), words, ignore_index=PAD, reduction="none")
        return losses.new_zeros(len(ids) + 1).index_add(0, sentence, losses)[:-1]

    def sampled_negative_log_likelihood(self, pictures: Tensor, ids: Tensor, share: Tensor) -> Tensor:
        """The same with scheduled sampling (Bengio et al., 2015), word by word.

        Args:
            share: `()` probability that a word is replaced by one drawn from the model's own last prediction.
        """
        targets, _ = with_end(ids)
        state, last = self.begin(pictures), torch.full_like(ids[:, 0], START)
        total = self.bias.new_zeros(len(ids))
        for word in targets.unbind(1):
            logits, state = self.step(last, state)
            total = total + F.cross_entropy(logits, word, ignore_index=PAD, reduction="none")
            # Gumbel-max sampling: `torch.multinomial` would wait for the GPU at every word.
            drawn = (logits.detach() - torch.empty_like(logits).exponential_().log()).argmax(1)
            use_drawn = torch.rand(len(ids), device=ids.device) < share
            last = torch.where(use_drawn, drawn, word)
        return total

    def speak(self, pictures: Tensor, *, width: int, longest: int) -> list[list[Spoken]]:
        """At most `width` sentences per picture by beam search, best first."""

        def step(last: Tensor, state: State) -> tuple[Tensor, State]:
            logits, state = self.step(last, state)
            logits[:, [PAD, UNKNOWN, START]] = -torch.inf
            # No empty sentences: to an untrained model they are the likeliest.
            logits[last == START, END] = -torch.inf
            return logits.log_softmax(1), state

        return beam_search(step, self.begin(pictures), start=START, end=END, width=width, longest=longest)


def with_end(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Sentences with the end token, `(sentences, longest + 1)`, and their lengths with it.

    >>> with_end(torch.tensor([[7, 8], [9, 0]]))[0].tolist()
    [[7, 8, 3], [9, 3, 0]]
    """
    lengths = (ids != PAD).sum(1)
    padded = torch.cat([ids, torch.zeros_like(ids[:, :1])], 1)
    return padded.scatter(1, lengths[:, None], END), lengths + 1


class ConceptsOrderNetwork(nn.Module):
    """Pictures and sentences as unit vectors of one space; with a generator, also sentences from pictures.

    Args:
        concepts: K; 0: context alone.
        context: I; 0: concepts alone.
        words: number of word ids, padding included.
        generates: with a `SentenceGenerator`.
        spoken: the context is not a vector but a generated sentence `(images, longest)` ("ctx + sen").
        centre: `(context,)` the mean direction of the context, for `centred`; zeros if it will be loaded.

    >>> network = ConceptsOrderNetwork(256, 1280, 1000, OrderRecipe(hidden=64, word=32), generates=False)
    >>> network.fuse(torch.rand(4, 256), torch.randn(4, 1280)).shape
    torch.Size([4, 64])
    """

    def __init__(
        self,
        concepts: int,
        context: int,
        words: int,
        recipe: OrderRecipe,
        *,
        generates: bool,
        spoken: bool = False,
        centre: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.longest = recipe.longest
        if recipe.centred and context:
            centre = torch.zeros(context) if centre is None else centre
        else:
            centre = None
        fused = GatedFusion(concepts, context, recipe.hidden, recipe.fusion, centre)
        self.fusion = SpokenPictures(words, recipe) if spoken else fused
        self.sentences = RecurrentEncoder(words, _reader(recipe))
        self.generator: SentenceGenerator | None = None
        if generates:
            new_words = nn.Embedding(words, recipe.word, padding_idx=PAD)
            word_vectors = self.sentences.words if recipe.shared_words else new_words
            dropout = recipe.dropout if recipe.generator_dropout is None else recipe.generator_dropout
            self.generator = SentenceGenerator(word_vectors, recipe.hidden, dropout, scaled=recipe.scaled_state)

    def fuse(self, concepts: Tensor | None, context: Tensor | None) -> Tensor:
        """v of eq. 2, `(images, hidden)`."""
        fused: Tensor = self.fusion(concepts, context)
        return fused

    def embed_images(self, concepts: Tensor | None, context: Tensor | None) -> Tensor:
        """Unit embeddings `(images, hidden)`."""
        return F.normalize(self.fuse(concepts, context))

    def embed_texts(self, ids: Tensor) -> Tensor:
        """Token ids `(texts, longest)` to unit embeddings `(texts, hidden)`; zeros for texts without a known word."""
        # One more column: all texts may be empty.
        ids = F.pad(ids, (0, 1))[:, : self.longest]
        known = (ids > END).any(1, keepdim=True)
        return F.normalize(self.sentences(ids)) * known

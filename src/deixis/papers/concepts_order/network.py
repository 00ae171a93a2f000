"""Semantic concepts and order (paper 3, section 3): a picture's concepts and context fused, made to tell its sentence.

`GatedFusion` is eq. 2, `SentenceGenerator` eq. 3. The sentence side is the last state of an LSTM (3.1), the concepts
come from `deixis.papers.concepts_order.concepts`, losses and sampling are in the learning room.

Readings of the paper:
- Eq. 3: as printed, a word is told from a state that has read it. Here the state has read the words before it, from a
  start word on, and the last word to tell is the end of the sentence.
- Eq. 3: F is D × G and a state has H ≠ D numbers, so a linear map H → D stands before Fᵀ.
- Eq. 2: the context vector is brought to unit length before; concepts are confidences, as they are.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from msgspec import Meta, Struct
from torch import Tensor, nn
from torch.nn import functional as F

from deixis.text.beam_search import Spoken, State, beam_search
from deixis.text.recurrent import RecurrentEncoder, RecurrentRecipe, Share, flat_words, read
from deixis.text.vocabulary import END, PAD, START, UNKNOWN

#: Sentences that beam search keeps in the making.
WIDTH = 5


class OrderRecipe(Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes of section 4.2, how concepts and context are fused, and whether both LSTMs share their words ("E")."""

    hidden: Annotated[int, Meta(ge=1)] = 1024
    word: Annotated[int, Meta(ge=1)] = 300
    #: Words of a sentence at most.
    longest: Annotated[int, Meta(ge=1)] = 50
    #: Where there are both: eq. 2, or the sum of its two summands without the gate.
    fusion: Literal["gate", "sum"] = "gate"
    shared_words: bool = False
    #: Of the words read and of the states that words are told from.
    dropout: Share = 0.0


class GatedFusion(nn.Module):
    """Eq. 2: concepts p `(images, K)` and context x `(images, I)` to v `(images, H)`.

    Without a gate v is the sum of both projections, and with one of the two sources alone its projection.
    """

    def __init__(self, concepts: int, context: int, hidden: int, fusion: str) -> None:
        super().__init__()
        self.concepts = nn.Linear(concepts, hidden, bias=False) if concepts else None  # W_l
        self.context = nn.Linear(context, hidden, bias=False) if context else None  # W_g
        gated = bool(concepts and context) and fusion == "gate"
        self.concept_gate = nn.Linear(concepts, hidden, bias=False) if gated else None  # U_l
        self.context_gate = nn.Linear(context, hidden, bias=False) if gated else None  # U_g

    def forward(self, concepts: Tensor | None, context: Tensor | None) -> Tensor:
        summands = []
        if self.concepts is not None and concepts is not None:
            summands.append(F.normalize(self.concepts(concepts)))
        if self.context is not None and context is not None:
            context = F.normalize(context)
            summands.append(F.normalize(self.context(context)))
        if self.concept_gate is None or self.context_gate is None:
            return torch.stack(summands).sum(0)
        gate = torch.sigmoid(self.concept_gate(concepts) + self.context_gate(context))
        return gate * summands[0] + (1 - gate) * summands[1]


def _reader(recipe: OrderRecipe) -> RecurrentRecipe:
    return RecurrentRecipe(word=recipe.word, hidden=recipe.hidden, dropout=recipe.dropout)


class SpokenPictures(nn.Module):
    """ "ctx + sen" of Table 1: a sentence told of a picture stands for it, read by an LSTM with words of its own."""

    def __init__(self, words: int, recipe: OrderRecipe) -> None:
        super().__init__()
        self.sentences = RecurrentEncoder(words, _reader(recipe))

    def forward(self, concepts: None, ids: Tensor) -> Tensor:
        read: Tensor = self.sentences(ids)
        return read


class SentenceGenerator(nn.Module):
    """Eq. 3: an LSTM that begins with a picture's vector as its hidden state, and tells a sentence word by word."""

    def __init__(self, words: nn.Embedding, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        #: F, of the words read and of the words told.
        self.words = words
        self.recurrence = nn.LSTM(words.embedding_dim, hidden, batch_first=True)
        self.map = nn.Linear(hidden, words.embedding_dim)
        self.bias = nn.Parameter(torch.zeros(words.num_embeddings))
        # Never of the recurrence itself.
        self.dropout = nn.Dropout(dropout)

    def logits(self, states: Tensor) -> Tensor:
        """States `(n, hidden)`, of which dropout has been taken, to `(n, words)`."""
        return F.linear(self.map(states), self.words.weight, self.bias)

    def begin(self, pictures: Tensor) -> State:
        """The state before the first word: hidden and memory, `(pictures, hidden)` each."""
        return pictures, torch.zeros_like(pictures)

    def step(self, last: Tensor, state: State) -> tuple[Tensor, State]:
        """The logits of the next words `(rows, words)` after these last ones `(rows,)`."""
        hidden, memory = state
        _, (hidden, memory) = self.recurrence(self.dropout(self.words(last))[:, None], (hidden[None], memory[None]))
        return self.logits(self.dropout(hidden[0])), (hidden[0], memory[0])

    def negative_log_likelihood(self, pictures: Tensor, ids: Tensor) -> Tensor:
        """−Σ_t log P(w_t | w_0 … w_{t−1}, picture) of each sentence with its picture, `(sentences,)`.

        All sentences go through the recurrence in one pass.

        Args:
            pictures: `(sentences, hidden)`.
            ids: `(sentences, longest)`, 0 = padding at the end.
        """
        told, lengths = with_end(ids)
        words = self.dropout(self.words(torch.cat([torch.full_like(ids[:, :1], START), ids], 1)))
        hidden, memory = self.begin(pictures)
        states, _ = read(self.recurrence, words, lengths, (hidden[None], memory[None]))
        (rows, sentence), (wanted, _) = (flat_words(values, told != PAD) for values in (self.dropout(states), told))
        losses = F.cross_entropy(self.logits(rows), wanted, ignore_index=PAD, reduction="none")
        return losses.new_zeros(len(ids) + 1).index_add(0, sentence, losses)[:-1]

    def sampled_negative_log_likelihood(self, pictures: Tensor, ids: Tensor, share: Tensor) -> Tensor:
        """The same, where with probability `share` `()` a word read is one drawn from the model's own last prediction.

        Scheduled sampling (Bengio et al., 2015). What is read depends on what was told, so it goes word by word.
        """
        told, _ = with_end(ids)
        state, last = self.begin(pictures), torch.full_like(ids[:, 0], START)
        total = self.bias.new_zeros(len(ids))
        for place in range(told.shape[1]):
            logits, state = self.step(last, state)
            total = total + F.cross_entropy(logits, told[:, place], ignore_index=PAD, reduction="none")
            # The first of waiting times at rates e^logit: `torch.multinomial` has the host wait for each word.
            drawn = (logits.detach() - torch.empty_like(logits).exponential_().log()).argmax(1)
            own = torch.rand(len(ids), device=ids.device) < share
            last = torch.where(own, drawn, told[:, place])
        return total

    def speak(self, pictures: Tensor, *, width: int, longest: int) -> list[list[Spoken]]:
        """At most `width` sentences of each picture by beam search, best first."""

        def step(last: Tensor, state: State) -> tuple[Tensor, State]:
            logits, state = self.step(last, state)
            logits[:, [PAD, UNKNOWN, START]] = -torch.inf
            # Something is said: an end after the start would be the best that a young model knows.
            logits[last == START, END] = -torch.inf
            return logits.log_softmax(1), state

        return beam_search(step, self.begin(pictures), start=START, end=END, width=width, longest=longest)


def with_end(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Sentences with the end word behind their last, `(sentences, longest + 1)`, and their lengths with it.

    >>> with_end(torch.tensor([[7, 8], [9, 0]]))[0].tolist()
    [[7, 8, 3], [9, 3, 0]]
    """
    lengths = (ids != PAD).sum(1)
    told = torch.cat([ids, torch.zeros_like(ids[:, :1])], 1)
    return told.scatter(1, lengths[:, None], END), lengths + 1


class ConceptsOrderNetwork(nn.Module):
    """Pictures and sentences as unit vectors of one space, and, with a generator, sentences from pictures.

    Args:
        concepts: K, or 0: context alone.
        context: I, or 0: concepts alone.
        words: ids of words, padding included.
        generates: learn order by generation.
        spoken: the context is no vector, but a sentence `(images, longest)` that was told of the picture.
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
    ) -> None:
        super().__init__()
        self.longest = recipe.longest
        fused = GatedFusion(concepts, context, recipe.hidden, recipe.fusion)
        self.fusion = SpokenPictures(words, recipe) if spoken else fused
        self.sentences = RecurrentEncoder(words, _reader(recipe))
        self.generator: SentenceGenerator | None = None
        if generates:
            own = nn.Embedding(words, recipe.word, padding_idx=PAD)
            words_told = self.sentences.words if recipe.shared_words else own
            self.generator = SentenceGenerator(words_told, recipe.hidden, recipe.dropout)

    def fuse(self, concepts: Tensor | None, context: Tensor | None) -> Tensor:
        """v of eq. 2, `(images, hidden)`."""
        fused: Tensor = self.fusion(concepts, context)
        return fused

    @torch.no_grad()
    def tell(self, concepts: Tensor | None, context: Tensor | None) -> Tensor:
        """The best sentence that beam search finds for each picture, as ids `(images, longest)`."""
        fused = self.fuse(concepts, context)
        assert self.generator is not None
        ids = torch.zeros(len(fused), self.longest, dtype=torch.int64)
        for row, spoken in zip(ids, self.generator.speak(fused, width=WIDTH, longest=self.longest), strict=True):
            row[: len(spoken[0].words)] = torch.tensor(spoken[0].words, dtype=torch.int64)
        return ids.to(fused.device)

    def embed_images(self, concepts: Tensor | None, context: Tensor | None) -> Tensor:
        """Unit rows `(images, hidden)`."""
        return F.normalize(self.fuse(concepts, context))

    def embed_texts(self, ids: Tensor) -> Tensor:
        """Token ids `(texts, longest)` to unit rows `(texts, hidden)`; zeros where no word is known."""
        # One more column, since texts may all be empty.
        ids = F.pad(ids, (0, 1))[:, : self.longest]
        known = (ids > END).any(1, keepdim=True)
        return F.normalize(self.sentences(ids)) * known

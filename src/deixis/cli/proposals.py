"""`deixis proposals`: train the learned proposals, and measure any method against a corpus' boxes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from deixis.corpus import Corpus
    from deixis.evaluation.proposals import ProposalRecall
    from deixis.vision.proposals import LearnedProposals

app = typer.Typer(no_args_is_help=True, help="Regions nobody drew: train a proposer, measure its recall.")


@app.command()
def train(
    corpus: Annotated[Path, typer.Argument(help="A corpus with pictures and boxes, in splits train and val.")],
    out: Annotated[Path, typer.Option(help="Where the weights go (.safetensors).")],
    backbone: Annotated[str, typer.Option(help="efficientnet-lite0, 1 or 2.")] = "efficientnet-lite2",
    side: Annotated[int, typer.Option(help="Pictures are squashed to this many pixels a side.")] = 384,
    epochs: Annotated[int, typer.Option(help="Passes over the training pictures.")] = 36,
    seed: Annotated[int, typer.Option(help="Seed of order and augmentation.")] = 0,
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cpu",
) -> None:
    """Train the learned proposals; epoch and overlap budget with the best recall at 100 on the split val are kept.

    Example: deixis proposals train joined/ --out proposer.safetensors --device cuda
    """
    import torch

    from deixis.cli.output import console
    from deixis.corpus import open_corpus
    from deixis.corpus.training import training_set
    from deixis.learning.proposer import Schedule, box_set, train_proposer
    from deixis.vision.efficientnet_lite import load_efficientnet_lite
    from deixis.vision.proposals import LearnedProposals
    from deixis.vision.proposer import Proposer

    opened = open_corpus(corpus)
    validation = opened.split("val")
    target = torch.device(device)
    torch.manual_seed(seed)
    model = Proposer(load_efficientnet_lite(backbone), backbone).to(target, memory_format=torch.channels_last)
    data = box_set(training_set(opened), side, target)
    pixels = squashed_pictures(validation, side).to(target)
    best = 0.0
    for epoch, loss, average in train_proposer(model, data, Schedule(epochs=epochs, side=side, seed=seed)):
        if (epoch + 1) % 6 and epoch != epochs - 1:
            continue
        for overlap in (0.5, 0.55, 0.6, 0.65):
            proposals = LearnedProposals(average, side, overlap)
            recall = measure(proposals, validation, pixels).percent["overall"][0.5][100]
            console().print(f"epoch {epoch + 1}  loss {loss:.3f}  overlap {overlap:g}: {recall:.2f} at 100 on val")
            if recall > best:
                best = recall
                proposals.save(out)


def squashed_pictures(corpus: Corpus, side: int) -> Any:
    """All pictures of a corpus as bytes `(images, 3, side, side)`."""
    from concurrent.futures import ThreadPoolExecutor

    import torch

    from deixis.vision.proposer import squashed
    from deixis.vision.reading import read_picture

    with ThreadPoolExecutor() as pool:
        return torch.stack(list(pool.map(lambda image: squashed(read_picture(corpus, image), side), corpus)))


def measure(proposals: LearnedProposals, corpus: Corpus, pixels: Any) -> ProposalRecall:
    from deixis.evaluation.proposals import COUNTS, proposal_recall

    batches = (proposals.propose_batch(batch, max(COUNTS)) for batch in pixels.split(32))
    return proposal_recall(zip(corpus, (found.boxes for batch in batches for found in batch), strict=True))

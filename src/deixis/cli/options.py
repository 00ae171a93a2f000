"""Options and arguments that several commands share, each declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

#: The default of `--split` wherever a split is scored or drawn from.
SCORED_SPLIT = "test"

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Force = Annotated[bool, typer.Option("--force", help="Replace existing files.")]
#: For output folders that hold a person's data.
ForceFolder = Annotated[
    bool, typer.Option("--force", help="Replace what is there; an existing folder is renamed to NAME.old.")
]
Index = Annotated[
    Path | None,
    typer.Option(
        "--index", metavar="INDEX", help="The folder of the index.", show_default="$DEIXIS_INDEX, or the user's own"
    ),
]
#: A model by name, where there is a default.
ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="deixis-base, a run folder, onnx:FOLDER, or open_clip:NAME.",
        show_default=False,
    ),
]
#: A trained run, for commands that cannot do without one.
RunModel = Annotated[Path, typer.Option("--model", metavar="RUN", help="A run folder.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")]

CorpusPath = Annotated[
    str,
    typer.Argument(
        metavar="CORPUS",
        help="A corpus of any format: a folder, .zip or file; `scenes` is built in.",
        show_default=False,
    ),
]
#: For commands that take a recipe or a run. Names such as `flickr8k-entities` do not say where the corpus is.
CorpusOfRun = Annotated[
    str | None,
    typer.Option(
        "--corpus", metavar="PATH", help="The corpus.", show_default="the recipe's, if it is `scenes` or a path"
    ),
]
Features = Annotated[
    list[Path] | None,
    typer.Option(
        "--features",
        metavar="STORE",
        help="A feature store of the corpus; may be repeated.",
        show_default="extracted and cached",
    ),
]
#: What a folder of pictures without captions lacks.
NO_CAPTIONS = (
    "has no captions: add a captions.csv with the columns file and caption, one line per caption, "
    "or a .txt beside each picture"
)
PicturesIn = Annotated[
    Path | None,
    typer.Option(
        "--pictures-in",
        metavar="PATH",
        help="A folder or .zip with the pictures, if they are not in the corpus.",
        show_default=False,
    ),
]
Split = Annotated[str, typer.Option("--split", help="The split to use; `all` for the whole corpus.")]
#: For commands that also take corpora without splits.
SplitIfAny = Annotated[
    str | None,
    typer.Option(
        "--split",
        help="The split to use; `all` for the whole corpus.",
        show_default=f"{SCORED_SPLIT}; all images of a corpus without splits",
    ),
]
#: For commands that choose parts of a corpus.
Splits = Annotated[
    list[str] | None, typer.Option("--split", help="Only this split; may be repeated.", show_default=False)
]
Limit = Annotated[
    int | None, typer.Option("--limit", metavar="N", min=1, help="Only the first N images.", show_default=False)
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of everything that is random.")]
Folds = Annotated[
    int, typer.Option("--folds", min=1, help="Rank within this many equal parts of the images, and average.")
]
ResultFile = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Write a result file.", show_default=False)
]
Drawing = Annotated[Path | None, typer.Option("--out", metavar="PNG", help="Draw it.", show_default=False)]

#: For servers.
AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host",
        metavar="NAME",
        help="Another name that the server is reached by, such as its proxy's; may be repeated.",
        show_default=False,
    ),
]
Proxy = Annotated[
    list[str] | None,
    typer.Option(
        "--proxy",
        metavar="ADDRESS",
        help="The address of a proxy whose X-Forwarded-For and X-Forwarded-Proto are trusted; may be repeated.",
        show_default="none",
    ),
]


def _device(name: str) -> str:
    """`auto` becomes cuda where there is a GPU, and cpu elsewhere."""
    from deixis.vision.learned_proposals import checked_device

    return checked_device(name).type


#: For commands that need PyTorch: always `cpu` or `cuda` when the command runs.
Device = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.", callback=_device)]
#: For commands that leave the choice to the model.
ModelDevice = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]

"""Options that several commands share, each declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

#: The split that is scored unless another is named.
SCORED_SPLIT = "test"

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Force = Annotated[bool, typer.Option("--force", help="Replace existing files.")]
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
#: A trained run that the command cannot do without.
RunModel = Annotated[Path, typer.Option("--model", metavar="RUN", help="A run folder.")]
Split = Annotated[str, typer.Option("--split", help="The split to score; `all` for the whole corpus.")]


#: Of servers.
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
        help="The address of a proxy in front, whose X-Forwarded-For and -Proto are believed; may be repeated.",
        show_default="none is believed",
    ),
]


def _device(name: str) -> str:
    """`auto` becomes cuda where there is a GPU, and cpu elsewhere."""
    from deixis.vision.learned_proposals import checked_device

    return checked_device(name).type


#: The device of commands that need PyTorch: always `cpu` or `cuda` when the command runs.
Device = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.", callback=_device)]
#: The device of commands that leave the choice to the model.
ModelDevice = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]

"""The result file that commands of `deixis evaluate` write on request."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deixis.cli.output_files import check_free, system_faults

if TYPE_CHECKING:
    from deixis.metrics.results import BoxSupervision, CorpusReference


@dataclass(frozen=True)
class Record:
    """A result file, if one was asked for; it names its input files with their SHA-256."""

    out: Path | None
    force: bool
    inputs: dict[str, Path]
    parameters: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_free(self.out, self.force)

    def write(
        self,
        protocol: str,
        ties: str,
        parameters: dict[str, str | float],
        figures: dict[str, Any],
        counts: dict[str, int],
        start: float,
        corpus: CorpusReference | None = None,
        box_supervision: BoxSupervision | None = None,
    ) -> None:
        if self.out is None:
            return
        from deixis.metrics.results import Protocol, make_result, save

        recorded: dict[str, str | float] = {**self.parameters, **parameters}
        for name, path in self.inputs.items():
            with path.open("rb") as stream:
                recorded |= {name: path.name, f"{name}_sha256": hashlib.file_digest(stream, "sha256").hexdigest()}
        result = make_result(
            Protocol(protocol, ties, {**recorded}),
            figures,
            duration=time.monotonic() - start,
            counts=counts,
            corpus=corpus,
            box_supervision=box_supervision,
        )
        with system_faults(self.out):
            save(result, self.out)

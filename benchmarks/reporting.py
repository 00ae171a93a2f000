"""Print the result of a benchmark, and write it to a file if one is given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from deixis.files import write_text

if TYPE_CHECKING:
    from deixis.adapters.search_model import SearchModel


def measured_with(model: SearchModel) -> dict[str, str]:
    """What a record says about the model that was searched with: its weights and its thresholds."""
    # Not above: `bundle_cpu.py` runs with the code of older versions, too.
    from deixis.adapters.bundles import thresholds_hash

    return {"model": str(model.identity), "thresholds": thresholds_hash(model.relevance)}


def write_report(record: Any, path: str | Path | None) -> None:
    text = json.dumps(record, indent=2, ensure_ascii=False, default=msgspec.to_builtins)
    print(text)
    if path is not None:
        write_text(path, text + "\n")

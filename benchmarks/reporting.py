"""Print the result of a benchmark, and write it to a file if one is given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from deixis.files import write_text


def write_report(record: Any, path: str | Path | None) -> None:
    text = json.dumps(record, indent=2, ensure_ascii=False, default=msgspec.to_builtins)
    print(text)
    if path is not None:
        write_text(path, text + "\n")

"""MkDocs hook: make the pages' links to files outside `docs/` work on the site.

In the repository pages link to result files, sources and other documents. `results/` becomes part of the site; links to
other files outside `docs/` become plain text, or lead to `extra.source_url` in mkdocs.yml if that is set.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]


def on_files(files: Any, config: Any) -> Any:
    """Add the result files, which pages link to."""
    for path in sorted((ROOT / "results").rglob("*.*")):
        files.append(
            File(path.relative_to(ROOT).as_posix(), str(ROOT), config["site_dir"], config["use_directory_urls"])
        )
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rewrite the links of a page that leave `docs/`."""
    folder = PurePosixPath("docs", page.file.src_uri).parent
    source_url = config["extra"].get("source_url")

    def rewritten(match: re.Match[str]) -> str:
        text, target = match.groups()
        path = PurePosixPath(os.path.normpath(folder / target.partition("#")[0]))
        if "://" in target or target.startswith(("#", "mailto:")) or path.parts[:1] == ("docs",):
            return match[0]
        if not (ROOT / path).exists():
            raise ValueError(f"{page.file.src_uri}: the link {target} leads nowhere")
        if path.parts[0] == "results":
            return f"[{text}]({PurePosixPath(os.path.relpath(path, PurePosixPath(page.file.src_uri).parent))})"
        return f"[{text}]({source_url}/{path})" if source_url else text

    return re.sub(r"\[([^\]\[]*)\]\(([^)\s]+)\)", rewritten, markdown)

"""MkDocs hook: show the notebooks in docs/ as pages, with the outputs that are stored in them.

`tutorials/researcher-tour.ipynb` becomes the page `tutorials/researcher-tour.md`; links to the notebook lead to it.
Pictures are part of the page. Nothing is run: a test runs the cells.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]


def on_files(files: Any, config: Any) -> Any:
    """Replace every notebook by a page."""
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        files.remove(file)
        text = page(Path(file.abs_src_path))
        files.append(File.generated(config, re.sub(r"\.ipynb$", ".md", file.src_uri), content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Lead links to notebooks to their pages."""
    return re.sub(r"(\]\([\w./-]+)\.ipynb\)", r"\1.md)", markdown)


def page(notebook: Path) -> str:
    """A notebook as Markdown."""
    parts = []
    for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            text = "".join(output.get("text", ""))
            if "image/png" in data:
                parts.append(f"![output](data:image/png;base64,{''.join(data['image/png']).strip()})")
            elif text:
                parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"

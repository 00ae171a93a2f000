"""Give result files the names of version 2: `python scripts/rename_results.py [FOLDER]`, by default `results`.

Papers were numbered before: `paper1/sentences-bi` is `two-branch/sentences-bi` now. Files move to the folder of their
recipe. In a result, `rows` and `recipe` are written anew: the recipe's name and hash as they are now, and those it had
as `formerly`. Every other byte stays, the command included. A second run changes nothing.

A result of other settings than the recipe's own (its hash is not the one in `former_recipes.json`) keeps its hash.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from deixis.metrics.former_names import FOLDERS, current_name

#: Each former recipe with the hash that it had, its name now and its hash now.
FORMER = json.loads((Path(__file__).parents[1] / "tests" / "training" / "former_recipes.json").read_text())

#: Readings of the papers that were named by a paper's number.
READINGS = {
    "Table 1 of paper 0": "Table 1 of the Entities paper",
    "Workflow of paper 0": "Workflow of the Entities paper",
}


def renamed_recipe(recipe: dict[str, Any]) -> dict[str, Any]:
    """A recipe as results name it, and those that it builds on, under their names of now."""
    former = FORMER.get(recipe["name"])
    if former is None:
        return recipe
    current = former["hash"] if recipe["hash"] == former["formerly"] else recipe["hash"]
    renamed = {"name": former["recipe"], "hash": current}
    if "stands_on" in recipe:
        renamed["stands_on"] = [renamed_recipe(other) for other in recipe["stands_on"]]
    return renamed | {"formerly": {"name": recipe["name"], "hash": recipe["hash"]}}


def renamed_result(text: str) -> str:
    """The text of a result file with its `rows` and `recipe` written anew, in the layout that results are saved in."""
    result = json.loads(text)
    for former, current in READINGS.items():
        text = text.replace(f'    "{former}"\n', f'    "{current}"\n')
    if result.get("rows"):
        rows = json.dumps([current_name(row) for row in result["rows"]], indent=2)
        text = _with_field(text, "rows", rows)
    if result.get("recipe"):
        text = _with_field(text, "recipe", json.dumps(renamed_recipe(result["recipe"]), indent=2))
    return text


def _with_field(text: str, field: str, value: str) -> str:
    """Replace a list or table at the top level of a result file: from its name to its closing bracket."""
    pattern = re.compile(rf'^  "{field}": [\[{{]$.*?^  [\]}}]', re.MULTILINE | re.DOTALL)
    replaced, count = pattern.subn(lambda _: f'  "{field}": ' + value.replace("\n", "\n  "), text)
    assert count == 1, f"{field}: not laid out as results are saved"
    return replaced


def renamed_path(path: Path) -> Path:
    """`paper1/sentences-bi-seed0.x.json` → `two-branch/sentences-bi-seed0.x.json`; `choices/paper1.json` likewise."""
    if path.parts[0] == "choices":
        return path.with_stem(FOLDERS.get(path.stem, path.stem))
    recipe = re.split(r"-seed\d|\.", path.as_posix())[0]
    return Path(current_name(recipe) + path.as_posix().removeprefix(recipe))


def main(folder: Path) -> None:
    moved = 0
    for path in sorted(folder.rglob("*.json")):
        text = path.read_text(encoding="utf-8")
        data = json.loads(text)
        is_result = isinstance(data, dict) and {"protocol", "metrics"} <= data.keys()
        target = folder / renamed_path(path.relative_to(folder))
        new = renamed_result(text) if is_result else text
        if (target, new) == (path, text):
            continue
        if target != path and target.exists():
            sys.exit(f"{target} is there already: {path} was not renamed")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(new, encoding="utf-8")
        if target != path:
            path.unlink()
        moved += 1
    for empty in sorted((each for each in folder.rglob("*") if each.is_dir()), reverse=True):
        if not any(empty.iterdir()):
            empty.rmdir()
    print(f"{moved} files of {folder} renamed")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "results"))

"""Names of recipes and tables before version 2, when papers were numbered. Old run folders and result files have them.

>>> current_name("paper1/sentences-bi"), current_name("paper0/table5/sae"), current_name("beyond/base")
('two-branch/sentences-bi', 'entities-cca/table5/sae', 'base/base')
"""

from __future__ import annotations

from typing import Any

FOLDERS = {
    "paper0": "entities-cca",
    "paper1": "two-branch",
    "paper2": "hm-lstm",
    "paper3": "concepts-order",
    "paper4": "dvsa",
}
RECIPES = {
    "beyond/base": "base/base",
    "beyond/captions": "base/captions",
    "beyond/grounding": "base/grounding",
    "beyond/pictures": "base/pictures",
    "beyond/pictures-both": "base/pictures-both",
    "beyond/joint": "two-branch/joint",
    "beyond/phrases": "two-branch/phrases",
    "beyond/sentences": "two-branch/sentences",
    "beyond/sentences-hardest": "two-branch/sentences-hardest",
    "beyond/sentences-ranking": "two-branch/sentences-ranking",
    "demo/alignment": "dvsa/demo-alignment",
    "demo/captions": "dvsa/demo-captions",
    "demo/phrases": "two-branch/demo-phrases",
    "demo/phrases-cca": "entities-cca/demo-phrases",
    "demo/sentences": "two-branch/demo-sentences",
}


def current_name(name: str) -> str:
    """What a recipe, a table or a row is called now; any other text as it is."""
    folder, slash, rest = name.partition("/")
    if slash and folder in FOLDERS:
        return f"{FOLDERS[folder]}/{rest}"
    return RECIPES.get(name, name)


def with_current_names(settings: Any) -> Any:
    """A recipe's settings with every former name in them replaced, also that of a trained backbone (`tower:NAME`)."""
    if isinstance(settings, dict):
        return {field: with_current_names(value) for field, value in settings.items()}
    if isinstance(settings, list | tuple):
        return [with_current_names(value) for value in settings]
    if isinstance(settings, str):
        prefix = "tower:" if settings.startswith("tower:") else ""
        return prefix + current_name(settings.removeprefix(prefix))
    return settings

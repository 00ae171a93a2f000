"""`load_model`: the only door to a model, trained here or elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from deixis.adapters.bundles import DEFAULT, ONNX, open_bundle
from deixis.errors import DeixisError
from deixis.model import Model

if TYPE_CHECKING:
    from deixis.adapters.search_model import SearchModel

RUN, CLIP = "run:", "open_clip:"
#: The concept network that comes with the package, a run.
CONCEPTS = "deixis-concepts"
KNOWN = f"{DEFAULT}, {CONCEPTS}, the folder of a finished run, {ONNX}FOLDER, {CLIP}ARCHITECTURE[/TAG or file]"


def load_model(name: str | Path = DEFAULT, device: str = "auto") -> Model:
    """Open a model by name.

    Args:
        name: `deixis-base`, which comes with the package; the folder of a finished run (`runs/bi`, or `run:runs/bi`);
            `onnx:FOLDER`, which `deixis export` wrote; `open_clip:ARCHITECTURE`, with `/TAG` or `/` and a file of
            weights; or `deixis-concepts`, the concept network that comes with the package.
        device: `cpu`, `cuda`, or `auto` for a GPU where there is one.

    >>> model = load_model("deixis-base")
    >>> model.embed_texts(["two dogs in the snow"]).shape
    (1, 512)
    """
    text = str(name)
    if device not in ("auto", "cpu", "cuda"):
        raise DeixisError(f"unknown device {device!r}; known: auto, cpu, cuda")
    # What comes with the package embeds without PyTorch: nothing is imported here that needs it.
    if (bundle := open_bundle(text)) is not None:
        from deixis.base.bundle_model import BundleModel

        return BundleModel(bundle, text, device)
    if text.startswith(CLIP):
        from deixis.adapters.open_clip import ClipModel
        from deixis.vision.learned_proposals import checked_device

        return ClipModel(text.removeprefix(CLIP), checked_device(device).type)
    if text == CONCEPTS:
        from deixis.papers.concepts_order.concepts import BUNDLED

        return _run(BUNDLED, text, device)
    folder = Path(text.removeprefix(RUN))
    if text.startswith(RUN) or folder.is_dir():
        return _run(folder, text, device)
    raise DeixisError(f"unknown model {text!r}; known: {KNOWN}")


def load_search_model(name: str | Path = DEFAULT, device: str = "auto") -> SearchModel:
    """Open a model to index or search photos with; one that does not embed pictures and texts is a `CannotError`."""
    from deixis.adapters.search_model import as_search_model

    return as_search_model(load_model(name, device))


def _run(folder: Path, name: str, device: str) -> Model:
    from deixis.training.run_models import load_run
    from deixis.vision.learned_proposals import checked_device

    model = load_run(folder, checked_device(device))
    model.name = name
    return model


def absolute_name(name: str) -> str:
    """The name of a model that opens it from any folder."""
    for prefix in (RUN, ONNX):
        if name.startswith(prefix):
            return f"{prefix}{Path(name.removeprefix(prefix)).absolute()}"
    model, _, weights = name.partition("/")
    if name.startswith(CLIP):
        return f"{model}/{Path(weights).absolute()}" if Path(weights).is_file() else name
    return f"{RUN}{Path(name).absolute()}" if name not in (DEFAULT, CONCEPTS) and Path(name).is_dir() else name

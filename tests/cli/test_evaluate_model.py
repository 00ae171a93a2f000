"""`deixis evaluate retrieval`, `twins` and the like: a model by its name, and the hash of its weights in the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deixis.adapters.bundles import open_bundle
from deixis.cli import main
from deixis.metrics.results import flatten, load


@pytest.mark.parametrize(
    ("command", "figure"),
    [
        ("retrieval", "text_to_image.r@1"),
        ("localization", "localization.overall.r@1"),
        ("twins", "twins.colour.accuracy"),
        ("two-objects", "two_objects.overall.accuracy"),
    ],
)
def test_a_model_is_scored_by_name(
    command: str,
    figure: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "result.json"
    monkeypatch.setattr(
        "sys.argv", ["deixis", "evaluate", command, "scenes:160", "--split", "val", "--out", str(out), "--json"]
    )
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    printed = json.loads(capsys.readouterr().out)
    result, bundle = load(out), open_bundle("deixis-base")
    assert 0 < result.figures[figure] <= 100
    assert dict(flatten(printed["metrics"])) == result.figures
    assert bundle is not None
    assert result.protocol.parameters["model"] == "deixis-base"
    assert result.protocol.parameters["weights_sha256"] == bundle.manifest.weights_sha256

"""`deixis evaluate retrieval`, `twins` and the like: a model by its name, and the hash of its weights in the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deixis.adapters.bundles import open_bundle
from deixis.cli import main
from deixis.metrics.results import flatten, load


@pytest.mark.parametrize(
    ("command", "scenes", "figure"),
    [
        ("retrieval", 80, "text_to_image.r@1"),
        ("localization", 80, "localization.overall.r@1"),
        ("twins", 160, "twins.colour.accuracy"),
        ("two-objects", 160, "two_objects.overall.accuracy"),
    ],
)
def test_a_model_is_scored_by_name(
    command: str,
    scenes: int,
    figure: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "result.json"
    arguments = [command, f"scenes:{scenes}", "--split", "val", "--out", str(out), "--json"]
    monkeypatch.setattr("sys.argv", ["deixis", "evaluate", *arguments])
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


def test_phrases_that_are_not_found_count_as_missed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing found is nothing localized, whatever the model says; a chunker that finds all changes nothing."""
    found = {}
    for name, finder in (("given", None), ("none", lambda tokens: []), ("every", _every_span)):
        options = [] if finder is None else ["--found-phrases"]
        monkeypatch.setattr("deixis.text.phrase_finding.phrases_in", finder)
        monkeypatch.setattr(
            "sys.argv", ["deixis", "evaluate", "localization", "scenes:20", "--split", "val", *options, "--json"]
        )
        with pytest.raises(SystemExit) as stop:
            main()
        assert not stop.value.code
        found[name] = json.loads(capsys.readouterr().out)
    recall = {name: each["metrics"]["localization"]["overall"]["r@1"] for name, each in found.items()}
    assert recall["none"] == 0 < recall["given"] == recall["every"]
    assert found["none"]["counts"]["not_found"] == found["none"]["counts"]["phrases"]
    assert found["every"]["counts"]["not_found"] == 0


def _every_span(tokens: list[str]) -> list[tuple[int, int]]:
    return [(start, end) for start in range(len(tokens)) for end in range(start + 1, len(tokens) + 1)]

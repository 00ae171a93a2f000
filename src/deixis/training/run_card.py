"""The model card of a run: what was trained, on which data, how well, with which boxes, by which command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deixis.training.run_records import RunPlan, Start, TrainingReport

LICENCE = (
    "Deixis is under the Apache License 2.0. The pictures, captions and pretrained weights that this model was trained "
    "from have licences of their own, which may limit what these weights may be used for."
)


def model_card(
    plan: RunPlan,
    report: TrainingReport,
    starts: Sequence[Start],
    batches: Mapping[str, float],
    published: Mapping[str, str],
) -> str:
    """Markdown for the README.md of a run folder.

    Args:
        batches: mean counts of a batch (pairs, triplets), by name.
        published: the paper's values for some of them.
    """
    recipe = plan.recipe
    sections = [
        f"# {recipe['name']}",
        f"A Deixis model of kind `{recipe['kind']}`, {report.parameters:,} parameters. {recipe['about']}".strip(),
        "## Trained on\n\n" + _data(plan),
        "## Box supervision\n\n" + box_statement(plan),
        "## Validation\n\n" + _figures(plan, report),
        *(["## A batch, on average\n\n" + _batches(batches, published)] if batches else []),
        "## How it was made\n\n" + _making(plan, report, starts),
        "## Licence\n\n" + LICENCE,
    ]
    return "\n\n".join(sections) + "\n"


def box_statement(plan: RunPlan) -> str:
    """Whether ground-truth boxes were used in this training or for its proposals."""
    training = "Trained with ground-truth boxes." if plan.learns_from_boxes else "Trained without ground-truth boxes."
    proposals = {
        True: "were trained with ground-truth boxes",
        False: "were made without ground-truth boxes",
        None: "come with the corpus, or are of unknown origin",
    }
    regions = [
        " It was trained on the features of ground-truth boxes."
        if store.proposals == "chains"
        else f" The regions are {store.proposals} proposals, which {proposals[store.proposals_saw_boxes]}."
        for store in plan.features
        if store.proposals
    ]
    return training + "".join(dict.fromkeys(regions))


def _data(plan: RunPlan) -> str:
    lines = []
    if plan.corpus is not None:
        lines.append(f"Corpus {plan.corpus.name or '(unnamed)'}, fingerprint `{plan.corpus.fingerprint}`.")
        lines += ["", "| split | images | SHA-256 of its image ids |", "|---|---:|---|"]
        lines += [
            f"| {name or '(none)'} | {split.images:,} | `{split.hash}` |" for name, split in plan.corpus.splits.items()
        ]
        lines += ["", "Trained on the split `train` without held-out pictures; epochs were compared on `val`.", ""]
    lines += [f"- Features: {store.backbone}, fingerprint `{store.fingerprint}`" for store in plan.features]
    return "\n".join(lines).strip() or "Data of the task itself."


def _figures(plan: RunPlan, report: TrainingReport) -> str:
    rows = "\n".join(f"| {name} | {value:.4g} |" for name, value in report.figures.items())
    table = f"| figure | value |\n|---|---:|\n{rows}"
    if not report.epochs:
        return f"Fitted in one go.\n\n{table}"
    figure = plan.recipe["schedule"]["figure"]
    why = f"the best of {report.epochs} by {figure}" if figure else "the last"
    stopped = "; training stopped early" if report.stopped_early else ""
    return f"Epoch {report.epoch}, {why}{stopped}.\n\n{table}"


def _batches(means: Mapping[str, float], published: Mapping[str, str]) -> str:
    rows = [f"| {name} | {mean:,.1f} | {published.get(name, '')} |" for name, mean in means.items()]
    return "\n".join(["| count | here | the paper |", "|---|---:|---:|", *rows])


def _making(plan: RunPlan, report: TrainingReport, starts: Sequence[Start]) -> str:
    last = starts[-1]
    versions = ", ".join(f"{name} {version}" for name, version in last.versions.items() if name != "platform")
    begun = f", in {len(starts)} starts" if len(starts) > 1 else ""
    readings = "".join(f"\n- Reading: {reading}" for reading in plan.recipe["readings"])
    rows = "".join(f"\n- Row: {row}" for row in plan.recipe["rows"])
    return (
        f"    {last.command}\n\n- Seed {plan.recipe['seed']}\n- {report.seconds:,.0f} s on {last.device}{begun}"
        f"\n- {versions}\n- Settings: `recipe.toml` as given, `run.json` in full{rows}{readings}"
    )

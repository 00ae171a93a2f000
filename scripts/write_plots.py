"""Write docs/plots/*.svg from the files in results/ and the papers' tables.

    python scripts/write_plots.py [--out docs/plots]

A row without a result file is left out, so new results appear when this is run again. `make pages` runs it. Every plot
is used on a page in docs/, and a test compares the numbers in the files with the results.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from plot_forms import Plot, Series, Value, svg

from deixis.files import write_text
from deixis.metrics.paper_tables import paper_tables

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
TYPES = ("people", "clothing", "bodyparts", "animals", "vehicles", "instruments", "scene", "other")
RANKING, LOCALIZATION = "image-text-ranking", "phrase-localization"
CUTS = ("r@1", "r@5", "r@10")
TO_TEXT, TO_IMAGE = "image_to_text.r@1", "text_to_image.r@1"
HERE, PAPER = "Deixis", "paper"
#: Where the figures of the bundled model are.
QUALITY, LOCALIZED = "search/quality", "base/deixis-base.phrase-localization.flickr8k-test"


def result(recipe: str, protocol: str, metric: str) -> Value | None:
    """Mean and standard deviation over the seeds of a recipe; none where there is no file with that metric.

    `two-branch/sentences-bi` is in results/two-branch/sentences-bi-seed*.image-text-ranking.json, a row that combines
    several runs, such as `two-branch/table5/weighted-distance`, in files without a protocol in their names.
    """
    found = []
    combined = recipe.count("/") > 1
    for path in sorted(RESULTS.glob(f"{recipe}-seed?.json" if combined else f"{recipe}-seed?.{protocol}.json")):
        value = _at(json.loads(path.read_text("utf-8"))["metrics"], metric)
        if value is not None:
            found.append(value)
    if not found:
        return None
    return statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else None


def here(label: str, recipes: Mapping[str, str], protocol: str, metric: str) -> Series:
    """Our values of one metric, for recipes by category."""
    values = {name: result(recipe, protocol, metric) for name, recipe in recipes.items()}
    return Series(label, {name: value for name, value in values.items() if value is not None})


def recalls(label: str, recipe: str, protocol: str, path: str, cuts: Iterable[str] = CUTS) -> Series:
    """Recall at several cut-offs of one recipe."""
    values = {cut.upper(): result(recipe, protocol, f"{path}.{cut}") for cut in cuts}
    return Series(label, {cut: value for cut, value in values.items() if value is not None})


def printed(table: str, rows: Mapping[str, str], metric: str, label: str = PAPER) -> Series:
    """The paper's values of one column, for ids of rows by category."""
    figures = {row.id: paper_tables()[table].figures(row) for row in paper_tables()[table].rows}
    values = {name: figures[row].get(metric) for name, row in rows.items()}
    return Series(label, {name: (value, None) for name, value in values.items() if value is not None}, published=True)


def read(name: str) -> Any:
    """A result file by its path below results/, without `.json`; empty if there is none."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def installed(name: str, metric: str) -> Value | None:
    """A figure of the bundled model, measured with its present weights."""
    found = read(name)
    value = _at(found.get("metrics", found), metric)
    return None if value is None else (float(value), None)


def _at(metrics: Any, path: str) -> Any:
    """What is at a dotted path, or none."""
    for part in path.split("."):
        metrics = metrics.get(part) if isinstance(metrics, dict) else None
    return metrics


# Flickr30k Entities and CCA


def entities_types() -> Plot:
    paper = printed("entities-cca/table2", {name: name for name in TYPES}, "r@1")
    ours = {
        name: result("entities-cca/phrases-n10", LOCALIZATION, f"localization.by_type.{name}.r@1") for name in TYPES
    }
    return Plot("bars", "Phrase localization by type, CCA with at most 10 pairs per phrase", "R@1 in percent",
                [_named(paper), _named(Series(HERE, _there(ours)))])  # fmt: skip


def entities_sentences() -> Plot:
    rows = {"CCA on sentences": "hglmm", "+ phrases (SAE)": "sae", "+ weighted distance": "weighted-distance"}
    recipes = {"CCA on sentences": "entities-cca/sentences", "+ phrases (SAE)": "entities-cca/sentences-sae",
               "+ weighted distance": "entities-cca/table5/weighted-distance"}  # fmt: skip
    return Plot("dots", "Region-phrase matches in image-sentence retrieval (Table 5)", "R@1 in percent", [
        _both(lambda metric: here(f"{HERE}, Flickr8k", recipes, RANKING, metric)),
        _both(lambda metric: printed("entities-cca/table5", rows, metric, f"{PAPER}, Flickr30k")),
    ])  # fmt: skip


_WAYS = ((TO_TEXT, "image→text"), (TO_IMAGE, "text→image"))


def _both(series: Callable[[str], Series]) -> Series:
    """Both directions as one series, with the direction in its categories."""
    values = {f"{name}, {way}": value for metric, way in _WAYS for name, value in series(metric).values.items()}
    return series(TO_TEXT)._replace(values=values)


# Two-branch networks

_TABLE1 = {
    "CCA": ("cca", "cca"),
    "embedding: linear, one direction": ("embedding-linear-single", "linear-single"),
    "embedding: nonlinear": ("embedding-single", "single"),
    "+ both directions": ("embedding-bi", "bi"),
    "+ more positive regions": ("embedding-augmented", "augmented"),
    "+ neighbourhood sampling": ("embedding-sampling", "sampling"),
    "+ neighbourhood constraints": ("embedding-constraints", "constraints"),
    "similarity: linear": ("similarity-linear", "similarity-linear"),
    "similarity: nonlinear": ("similarity", "similarity"),
    "similarity: linear, more positives": ("similarity-linear-augmented", "similarity-linear-augmented"),
    "similarity: nonlinear, more positives": ("similarity-augmented", "similarity-augmented"),
}


def two_branch_phrases() -> Plot:
    metric = "localization.overall.r@1"
    recipes = {name: f"two-branch/phrases-{recipe}" for name, (_, recipe) in _TABLE1.items()}
    return Plot("dots", "Phrase localization, row by row (Table 1)", "R@1 in percent", [
        here(HERE, recipes, LOCALIZATION, metric),
        printed("two-branch/table1", {name: row for name, (row, _) in _TABLE1.items()}, metric),
    ])  # fmt: skip


_TABLE2 = {
    "mean vectors, CCA": ("mean-vector", "mean-vector"),
    "Fisher vectors, CCA": ("cca-hglmm-plummer", "cca"),
    "linear, one direction": ("embedding-linear-single", "linear-single"),
    "linear, both": ("embedding-linear-bi", "linear-bi"),
    "nonlinear, one direction": ("embedding-single", "single"),
    "nonlinear, both": ("embedding-bi", "bi"),
    "+ neighbourhood sampling": ("embedding-sampling", "sampling"),
    "+ neighbourhood constraints": ("embedding-constraints", "constraints"),
    "the same with an LSTM": ("embedding-lstm", "lstm"),
    "similarity network": ("similarity", "similarity"),
}


def two_branch_sentences() -> Plot:
    recipes = {name: f"two-branch/sentences-{recipe}" for name, (_, recipe) in _TABLE2.items()}
    rows = {name: row for name, (row, _) in _TABLE2.items()}
    return Plot("dots", "Sentence → picture retrieval, row by row (Table 2)", "R@1 in percent", [
        here(f"{HERE}, Flickr8k", recipes, RANKING, TO_IMAGE),
        printed("two-branch/table2", rows, TO_IMAGE, f"{PAPER}, Flickr30k"),
    ])  # fmt: skip


def localization_curves() -> Plot:
    path, cuts = "localization.overall", (*CUTS, "r@100")
    base = {cut.upper(): installed(LOCALIZED, f"{path}.{cut}") for cut in cuts}
    paper = {cut.upper(): _printed_cell("two-branch/table1", "similarity-augmented", f"{path}.{cut}") for cut in CUTS}
    return Plot("curves", "Phrase localization: recall by number of regions", "phrases found, percent", [
        recalls("CCA", "two-branch/phrases-cca", LOCALIZATION, path, cuts),
        recalls("embedding network", "two-branch/phrases-bi", LOCALIZATION, path, cuts),
        recalls("+ positives, sampling", "two-branch/phrases-sampling", LOCALIZATION, path, cuts),
        Series("deixis-base (fine-tuned)", _there(base)),
        Series("paper, similarity network", _there(paper), published=True),
    ])  # fmt: skip


def localization_types() -> Plot:
    models = {"CCA": "two-branch/phrases-cca", "two-branch": "two-branch/phrases-sampling"}
    paths = {name: f"localization.by_type.{name}.r@1" for name in TYPES}
    series = [
        Series(label, _there({name: result(recipe, LOCALIZATION, path) for name, path in paths.items()}))
        for label, recipe in models.items()
    ]
    series.append(Series("deixis-base", _there({name: installed(LOCALIZED, path) for name, path in paths.items()})))
    return Plot("bars", "Phrase localization by type", "R@1 in percent", [_named(one) for one in series])


# HM-LSTM


def hm_lstm_curves() -> Plot:
    models = {"mean vectors": "hm-lstm/mean-vector-original", "DVSA": "dvsa/swept-brnn",
              "chain": "hm-lstm/chain-lstm-20-epochs", "Tree-LSTM": "hm-lstm/tree-lstm-20-epochs",
              "HM-LSTM, Û = Ū + Δ": "hm-lstm/hm-lstm-separate-difference"}  # fmt: skip
    paper = {cut.upper(): _printed_cell("hm-lstm/table1", "hm-lstm", f"text_to_image.{cut}") for cut in CUTS}
    return Plot("curves", "Sentence → picture retrieval on Flickr8k", "pictures found, percent", [
        *(recalls(label, recipe, RANKING, "text_to_image") for label, recipe in models.items()),
        Series("paper, HM-LSTM", _there(paper), published=True),
    ])  # fmt: skip


def hm_lstm_rounds() -> Plot:
    """Without losses of phrases, and with them: rounds, the choice of regions, negatives."""
    names = {"no phrases": "separate-difference", "1 round": "difference-1-round", "3 rounds": "difference-rounds",
             "3 rounds, best-matching regions": "difference-best-region",
             "3 rounds, negatives from the batch": "difference-batch"}  # fmt: skip
    recipes = {name: f"hm-lstm/hm-lstm-{recipe}" for name, recipe in names.items()}
    return Plot("dots", "What training on phrases adds", "percent", [
        here("sentences: mean recall", recipes, RANKING, "mean_recall"),
        here("region → phrase: R@10", recipes, "region-phrase-ranking", "strings.region_to_phrase.r@10"),
    ])  # fmt: skip


def hm_lstm_difference() -> Plot:
    """The validation sum by epoch, for the decays of Û − Ū; none: Û is learned by itself."""
    series = []
    for run in read("choices/hm-lstm")["difference"]:
        if "margin" in run:
            continue
        decay = run["difference_decay"]
        label = "separate weights" if decay is None else f"Ū + Δ, decay {decay:g}"
        series.append(Series(label, {str(n): (v, None) for n, v in enumerate(run["rsum_by_epoch"], 1) if n % 4 == 0}))
    return Plot("curves", "HM-LSTM: weights of noun phrases by themselves, or as a difference",
                "sum of six recalls, validation", series, below="epoch", bottom=200)  # fmt: skip


def hm_lstm_types() -> Plot:
    protocol = "phrase-region-correspondences"
    models = {"expected overlap": "hm-lstm/hm-lstm-difference-rounds",
              "best match, as printed": "hm-lstm/hm-lstm-difference-best-region"}  # fmt: skip
    series = [
        Series(label, _there({name: result(recipe, protocol, f"round_3.by_type.{name}.right") for name in TYPES}))
        for label, recipe in models.items()
    ]
    rounds = "hm-lstm/hm-lstm-difference-rounds"
    bound = {name: result(rounds, protocol, f"round_3.by_type.{name}.upper_bound") for name in TYPES}
    series.append(Series("best possible", _means(bound), published=True))
    return Plot("bars", "Learned correspondences that are correct, by type", "percent (IoU at least 0.5)",
                [_named(one) for one in series])  # fmt: skip


# Semantic concepts and order

_ABLATION = {
    "context, one crop": "ctx-1-crop",
    "context": "ctx",
    "context + sentence": "ctx-sen",
    "context + generation": "ctx-gen",
    "context + generation, sampled": "ctx-gen-s",
    "concepts": "cnp",
    "concepts + generation": "cnp-gen",
    "concepts + context, summed": "cnp-ctx-c",
    "concepts + context, gate": "cnp-ctx",
    "all three": "cnp-ctx-gen",
}


def concepts_ablation() -> Plot:
    recipes = {name: f"concepts-order/centred-{row}" for name, row in _ABLATION.items()}
    coco = {name: f"concepts-order/coco-centred-{row}" for name, row in _ABLATION.items()}
    return Plot("dots", "Context, concepts and generation (Table 2)", "mean recall in percent", [
        here(f"{HERE}, Flickr8k", recipes, RANKING, "mean_recall"),
        here(f"{HERE}, COCO-mini", coco, RANKING, "mean_recall"),
        printed("concepts-order/table2-flickr30k", _ABLATION, "mean_recall", f"{PAPER}, Flickr30k"),
    ])  # fmt: skip


def concepts_curve() -> Plot:
    """Mean recall by the number of training pictures; beyond 6,000 they are COCO's."""
    series = []
    for label, recipe in (("context", "curve-ctx"), ("context and generation", "curve-ctx-gen")):
        files = {size: f"concepts-order/{recipe}-seed0-{size}.{RANKING}" for size in (1500, 3000, 6000, 16000)}
        files[42000] = f"concepts-order/{recipe}-42000-seed0.{RANKING}"
        series.append(Series(label, _there({f"{n:,}": installed(name, "mean_recall") for n, name in files.items()})))
    return Plot("curves", "Generation as supervision, by the number of training pictures (one seed)",
                "mean recall in percent", series, below="training pictures")  # fmt: skip


def concepts_order() -> Plot:
    models = {"context": "centred-ctx", "+ generation": "centred-ctx-gen", "concepts + context": "centred-cnp-ctx",
              "concepts + context + generation": "centred-cnp-ctx-gen",
              "the same, uncentred, twins as negatives": "cnp-ctx-gen-order",
              "drawn scenes: context": "scenes-tuned-ctx",
              "drawn scenes: context, twins as negatives": "scenes-tuned-ctx-order",
              "drawn scenes: concepts + context, twins": "scenes-tuned-cnp-ctx-order"}  # fmt: skip
    recipes = {name: f"concepts-order/{recipe}" for name, recipe in models.items()}
    return Plot("bars", "Is the right caption ahead of the same words in another order?", "correct pairs, percent",
                [here(HERE, recipes, "order-of-words", "order.accuracy")], lines={"chance": 50.0})  # fmt: skip


# Visual-semantic alignments


def dvsa_ranking() -> Plot:
    rows = {"DeFrag": "defrag-ours", "DepTree": "deptree", "BRNN": "brnn"}
    recipes = {"DeFrag": "dvsa/swept-defrag", "DepTree": "dvsa/swept-deptree", "BRNN": "dvsa/swept-brnn"}
    return Plot("dots", "Ranking by alignment scores on Flickr8k (supplement, Table 2)", "R@1 in percent", [
        _both(lambda metric: here(HERE, recipes, RANKING, metric)),
        _both(lambda metric: printed("dvsa/table2", rows, metric)),
    ])  # fmt: skip


def dvsa_alignment() -> Plot:
    protocol = "phrase-alignment"
    models = {"BRNN": "dvsa/brnn", "DepTree": "dvsa/deptree", "DeFrag": "dvsa/defrag"}
    ways = {"word by word": "word_alignment", "best path (paper)": "alignment", "expected overlap": "shared_alignment"}
    blind = {name: result("dvsa/brnn", protocol, f"wordless.{key}") for name, key in
             (("largest proposal", "largest"), ("whole picture", "whole"))}  # fmt: skip
    return Plot("bars", "Phrases whose region is correct, by how regions are chosen", "percent (IoU at least 0.5)",
                [here(way, models, protocol, f"{key}.overall.r@1") for way, key in ways.items()],
                lines={name: value[0] for name, value in blind.items() if value})  # fmt: skip


_OPTIMIZERS = {"RMSProp": "rmsprop", "Adam": "adam", "Adagrad": "adagrad", "Adadelta": "adadelta",
               "momentum": "momentum", "SGD": "sgd"}  # fmt: skip


def dvsa_optimizers() -> Plot:
    """The rates that were tried with each optimizer, by their place beside the best one, and its captions on test."""
    tried = read("choices/dvsa")["centred_optimizers"]
    labels = {-2: "a tenth of the best rate", -1: "a third", 0: "best rate", 1: "three times", 2: "ten times"}
    found: dict[int, dict[str, Value | None]] = {place: {} for place in labels}
    names, recipes = {}, {}
    for optimizer, key in _OPTIMIZERS.items():
        seen, best = tried[key]["seen"], tried[key]["chosen"]
        names[optimizer] = f"{optimizer} ({best})"
        recipes[names[optimizer]] = tried[key]["recipe"]
        for turn, rate in enumerate(seen):
            found[turn - list(seen).index(best)][names[optimizer]] = (seen[rate]["cider_d"], None)
    series = [Series(label, _there(found[place])) for place, label in labels.items()]
    title = "Captions by an LSTM, by optimizer and learning rate"
    return Plot("dots", title, "CIDEr-D, Flickr8k validation, and test where said",
                [*series, here("best rate, test", recipes, "captioning", "captions.cider_d")])  # fmt: skip


# Beyond the papers, and all of them together

_FIVE = {
    "DVSA": "dvsa/swept-brnn",
    "CCA, weighted distance": "entities-cca/table5/weighted-distance",
    "two-branch": "two-branch/sentences-bi",
    "concepts and order": "concepts-order/centred-cnp-ctx",
    "HM-LSTM": "hm-lstm/hm-lstm-separate-difference",
    "HM-LSTM, fine-tuned": "hm-lstm/hm-lstm-tuned",
}


def five_papers() -> Plot:
    series = [recalls(label, recipe, RANKING, "text_to_image") for label, recipe in _FIVE.items()]
    base = {cut.upper(): installed(QUALITY, f"text_to_image.{cut}") for cut in CUTS}
    return Plot("curves", "The five papers under one protocol: sentence → picture, Flickr8k", "pictures found, percent",
                [*series, Series("deixis-base", _there(base))])  # fmt: skip


def base_steps() -> Plot:
    steps = {"frozen features, ranking loss": "two-branch/sentences-ranking", "InfoNCE": "two-branch/sentences",
             "fine-tuned backbone, recurrent text": "base/pictures", "+ COCO-mini": "base/pictures-both",
             "+ cells, words, phrases": "base/base"}  # fmt: skip
    series = [
        ours._replace(
            values=_there({**ours.values, "+ more pictures and boxes (deixis-base)": installed(QUALITY, metric)})
        )
        for metric, ours in ((metric, here(way, steps, RANKING, metric)) for metric, way in _WAYS)
    ]
    return Plot("dots", "From the papers' losses to deixis-base", "R@1 in percent, Flickr8k test", series)


def base_twins() -> Plot:
    kinds = ("colour", "number", "attribute", "role")
    series = []
    for label, corpus in (("Flickr8k", "flickr8k"), ("COCO-mini", "coco-mini")):
        twins = read(f"base/deixis-base.caption-twins.{corpus}-test")
        found = {kind: _at(twins, f"metrics.twins.{kind}.accuracy") for kind in kinds}
        series.append(Series(label, _there({kind: value and (value, None) for kind, value in found.items()})))
    return Plot("bars", "Right caption against one with a changed word: deixis-base", "percent right", series,
                lines={"language model that sees no picture": 50.0})  # fmt: skip


def proposals() -> Plot:
    kinds = {
        "EdgeBoxes": "edge-boxes",
        "learned proposals": "learned",
        "selective search": "selective-search",
        "grid": "grid",
    }
    series = []
    for label, name in kinds.items():
        found = read(f"proposals/{name}")
        recall = _at(found.get("metrics", found), "overall.iou50") or {}
        series.append(Series(label, {cut.upper(): (float(value), None) for cut, value in recall.items()}))
    return Plot(
        "curves", "Phrases that proposals reach, by number of proposals", "phrases with a proposal, percent", series
    )


# Speed


def speed_peers() -> Plot:
    """Times as fast as what it is compared with; all ratios of one run on one machine."""
    cca, trees = read("benchmarks/cca"), read("benchmarks/tree_lstm")["batch_512"]
    pairs = read("benchmarks/two_branch")["settings"]["sentences"]["loss_times_faster"]
    search, plain = read("benchmarks/search"), read("benchmarks/extraction")["against_a_plain_loop"]
    times = {
        "CCA, against cca_zoo": cca["times_faster_than_the_faster"],
        "two-branch loss, against pytorch-metric-learning": pairs["pytorch-metric-learning"],
        "two-branch loss, against a loop over pairs": pairs["loop"],
        "tree LSTM, against node by node": trees["times_node_by_node"],
        "tree LSTM, against tree by tree": trees["times_tree_by_tree"],
        "region features, against a plain PyTorch loop": plain["ratio_to_plain_loop"],
        "region features, against one pass per box": plain["ratio_to_a_pass_a_box"],
        "exact search of a million, against bare FAISS": 1 / search["engine_over_bare_faiss"],
        "approximate search, against exact FAISS": search["approximate_speed_over_bare_faiss"],
    }
    return Plot("bars", "How many times as fast Deixis is, on two CPU cores", "times as fast (logarithmic)",
                [Series(HERE, {name: (float(value), None) for name, value in times.items()})],
                lines={"equal speed": 1.0}, logarithmic=True)  # fmt: skip


def search_curve() -> Plot:
    """Which pictures the bundled model finds, with and without the second look at cells."""
    quality = read("search/quality")
    ways = {
        "search (embeddings, then cells and words)": "text_to_image",
        "embeddings alone": "text_to_image, embeddings alone",
    }
    return Plot("curves", "Photo search with deixis-base: Flickr8k, 1,000 pictures", "pictures found, percent", [
        Series(label, {cut.upper(): (float(quality[key][cut]), None) for cut in CUTS}) for label, key in ways.items()
    ])  # fmt: skip


PLOTS: dict[str, Callable[[], Plot]] = {
    "entities-cca-types": entities_types,
    "entities-cca-sentences": entities_sentences,
    "two-branch-phrases": two_branch_phrases,
    "two-branch-sentences": two_branch_sentences,
    "localization-curves": localization_curves,
    "localization-types": localization_types,
    "hm-lstm-curves": hm_lstm_curves,
    "hm-lstm-rounds": hm_lstm_rounds,
    "hm-lstm-difference": hm_lstm_difference,
    "hm-lstm-types": hm_lstm_types,
    "concepts-order-ablation": concepts_ablation,
    "concepts-order-curve": concepts_curve,
    "concepts-order-twins": concepts_order,
    "dvsa-ranking": dvsa_ranking,
    "dvsa-alignment": dvsa_alignment,
    "dvsa-optimizers": dvsa_optimizers,
    "five-papers": five_papers,
    "base-steps": base_steps,
    "base-twins": base_twins,
    "proposals": proposals,
    "speed-peers": speed_peers,
    "search-quality": search_curve,
}


def _there(values: Mapping[str, Value | None]) -> dict[str, Value]:
    return {name: value for name, value in values.items() if value is not None}


def _means(values: Mapping[str, Value | None]) -> dict[str, Value]:
    return {name: (value[0], None) for name, value in values.items() if value is not None}


def _named(series: Series) -> Series:
    return series._replace(
        values={name.replace("bodyparts", "body parts"): value for name, value in series.values.items()}
    )


def _printed_cell(table: str, row: str, metric: str) -> Value | None:
    return printed(table, {row: row}, metric).values.get(row)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, default=ROOT / "docs" / "plots", metavar="FOLDER")
    out: Path = options.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name, make in PLOTS.items():
        write_text(out / f"{name}.svg", svg(make()))


if __name__ == "__main__":
    main()

"""The numbers that docs/performance.md takes from result files: ratios, and GPU times with their lower bounds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

#: A limit, or where its result file has it.
Bound = float | Callable[[Any], float]


class Ratio(NamedTuple):
    """A ratio in a result file, and its limit if it has one."""

    file: str
    what: str
    value: Callable[[Any], float]
    at_most: Bound | None = None
    at_least: Bound | None = None

    def limit(self, result: Any) -> str:
        """The limit as the table shows it."""
        for sign, bound in (("≤", self.at_most), ("≥", self.at_least)):
            if bound is not None:
                return f"{sign} {_number(bound, result):g}"
        return ""

    def holds(self, result: Any) -> bool:
        value = self.value(result)
        above = self.at_most is not None and value > _number(self.at_most, result)
        below = self.at_least is not None and value < _number(self.at_least, result)
        return not above and not below


def _number(bound: Bound, result: Any) -> float:
    return float(bound(result) if callable(bound) else bound)


def _step_times(setting: str, way: str, result: Any) -> float:
    return float(result["settings"][setting]["times_faster"][way])


def _by_ray(name: str, result: Any) -> float:
    engines = result["features"][name]
    return float(engines["ray"]["pictures_per_second"] / engines["local"]["pictures_per_second"])


def _recorded(kind: Any) -> float:
    return float(kind["kernel by kernel"]["step_ms"] / kind["graphs"]["step_ms"])


RATIOS = (
    Ratio("ranking", "ranking in both directions / the matrix product alone", lambda result: result["time_ratio"],
          at_most=lambda result: result["time_ratio_limit"]),
    Ratio("ranking", "ranking: memory above the inputs / 1 GB", lambda result: result["memory_ratio"], at_most=1),
    Ratio("cca", "CCA: the faster of two libraries / Deixis",
          lambda result: result["times_faster_than_the_faster"],
          at_least=lambda result: result["limits"]["times_faster"]),
    Ratio("cca-full", "CCA of Flickr30k Entities at full size on a GPU: covariances / lower bound",
          lambda result: result["covariances_times_floor"]),
    *(Ratio(file, f"tree LSTM, 512 sentences: nodes per second / node by node{on}",
            lambda result: result["batch_512"]["times_node_by_node"], at_least=times)
      for file, on, times in (("tree_lstm", "", 10), ("tree_lstm-gpu", " on a GPU", 100))),
    *(Ratio(file, f"tree LSTM, 64 sentences: its matrix products / all of it{on}",
            lambda result: result["batch_64"]["share_of_products"])
      for file, on in (("tree_lstm", ""), ("tree_lstm-gpu", " on a GPU"))),
    Ratio("two_branch", "two-branch loss of 500 pairs: pytorch-metric-learning (all triplets) / Deixis",
          lambda result: result["settings"]["sentences"]["loss_times_faster"]["pytorch-metric-learning"]),
    *(Ratio("two_branch", f"two-branch step of {pairs} pairs: {way} / Deixis", partial(_step_times, setting, name))
      for setting, pairs in (("sentences", 500), ("phrases", 100))
      for name, way in (("loop", "a loop"), ("pytorch-metric-learning", "pytorch-metric-learning (all triplets)"))),
    Ratio("two_branch-full", "two-branch epoch at the size of Flickr30k on a GPU (TF32) / lower bound",
          lambda result: result["runs"]["tf32"]["epoch_s"] / result["runs"]["tf32"]["floor_s"]),
    Ratio("recorded_steps", "training step on a GPU (500 pairs): without / with CUDA graph",
          lambda result: result["kinds"]["embedding"]["times_as_fast"]),
    Ratio("recorded_steps", "the same for the similarity network",
          lambda result: result["kinds"]["similarity"]["times_as_fast"]),
    Ratio("launches-unpadded", "captioner step (LSTM) on a GPU: without / with CUDA graphs",
          lambda result: _recorded(result["kinds"]["captions, LSTM"])),
    Ratio("alignment-gpu", "DVSA alignment kernel: rate / rate of matrix products",
          lambda result: result["share_of_matrix_rate"]),
    Ratio("alignment-gpu", "DVSA alignment kernel: best other way / Deixis",
          lambda result: result["times_as_fast_as_best_other"]),
    Ratio("concepts_order-gpu", "concepts and order: step with / without generation",
          lambda result: result["times_matching"], at_most=lambda result: result["limit"]),
    *(Ratio("engines", f"extraction of {what} on one machine: pictures per second with Ray / without",
            partial(_by_ray, name))
      for name, what in (("image", "vectors"), ("regions", "regions"))),
    Ratio("extraction", "extraction of regions: pictures per second / a plain loop",
          lambda result: result["against_a_plain_loop"]["ratio_to_plain_loop"], at_least=1.6),
    Ratio("extraction", "extraction of regions: pictures per second / one pass per box",
          lambda result: result["against_a_plain_loop"]["ratio_to_a_pass_a_box"]),
    Ratio("extraction-gpu", "extraction on a GPU / decoding alone",
          lambda result: result["by_stage"]["share_of_decoding_alone"]),
    Ratio("extraction-gpu", "the same after start-up / its networks alone",
          lambda result: result["by_stage"]["share_of_networks_alone_between"]),
    Ratio("fisher", "Fisher vectors of 100,000 captions: seconds / limit",
          lambda result: result["encode_and_write_s"] / result["limits"]["encode_and_write_s"], at_most=1),
)  # fmt: skip


class Floor(NamedTuple):
    """Seconds of some work on a GPU, and the lower bound of its operations or bytes there."""

    file: str
    what: str
    seconds: Callable[[Any], float]
    floor: Callable[[Any], float]


def _epoch(kind: str) -> tuple[Callable[[Any], float], Callable[[Any], float]]:
    return lambda result: result["runs"][kind]["epoch_s"], lambda result: result["runs"][kind]["floor_s"]


#: How much the last losses of two ways to compute the same steps may differ: compiled code draws dropout differently.
SAME_LOSS = 0.1


def same_loss(ways: Any, way: str) -> bool:
    """Whether steps end at the loss of the eager ones; if not, their time means nothing."""
    return bool(abs(ways[way]["last_loss"] / ways["eager"]["last_loss"] - 1) <= SAME_LOSS)


def _step(way: str) -> tuple[Callable[[Any], float], Callable[[Any], float]]:
    def seconds(result: Any) -> float:
        ways = result["steps_of_one_size"]["ways"]
        if not same_loss(ways, way):
            raise KeyError(f"{way}: another loss")
        return float(ways[way]["step_ms"] / 1e3)

    return seconds, lambda result: result["steps_of_one_size"]["floor_s"]


def _order(name: str) -> tuple[Callable[[Any], float], Callable[[Any], float]]:
    return lambda result: result[f"{name}_milliseconds"] / 1e3, lambda result: result["floors"][name]["floor_s"]


def _tree(size: int) -> tuple[Callable[[Any], float], Callable[[Any], float]]:
    return lambda result: result[f"batch_{size}"]["milliseconds"] / 1e3, lambda result: result[f"batch_{size}"][
        "floor_s"
    ]


FLOORS = (
    *(Floor("two_branch-full", f"two-branch epoch at the size of Flickr30k, {kind}", *_epoch(kind))
      for kind in ("float32", "tf32", "bfloat16")),
    *(Floor("two_branch-full", f"two-branch step of 500 pairs (TF32), {label}", *_step(way))
      for way, label in (("eager", "eager"), ("compiled", "compiled"), ("graph", "one CUDA graph"))),
    *(Floor("tree_lstm-gpu", f"tree LSTM, forward and backward, {size} sentences", *_tree(size)) for size in (64, 512)),
    Floor("alignment-gpu", "DVSA alignment kernel, 1,000 pictures and 5,000 captions (bfloat16)",
          lambda result: result["best_ms"] / 1e3,
          lambda result: result["operations"] / max(result["matrix_operations_per_s"])),
    Floor("cca-full", "CCA of Flickr30k Entities at full size (float64)",
          lambda result: result["seconds"], lambda result: result["floor_s"]),
    Floor("concepts_order-gpu", "concepts and order, step of 129 pairs", *_order("matching")),
    Floor("concepts_order-gpu", "the same with generation", *_order("with_generation")),
    Floor("extraction-gpu", "extraction of 100 regions per picture, 3,000 pictures",
          lambda result: result["by_stage"]["ms_per_picture"] / 1e3,
          lambda result: result["by_stage"]["floor_ms_per_picture"] / 1e3),
    Floor("extraction-gpu", "the same after start-up",
          lambda result: 1 / result["by_stage"]["pictures_per_second_between"],
          lambda result: result["by_stage"]["floor_ms_per_picture"] / 1e3),
    Floor("extraction-gpu", "its networks alone (proposals, backbone, regions, and copying pixels)",
          lambda result: 1 / result["by_stage"]["pictures_per_second"]["networks alone"],
          lambda result: result["by_stage"]["floors_ms_per_picture"]["operations on the device"] / 1e3),
)  # fmt: skip

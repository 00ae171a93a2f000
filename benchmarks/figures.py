"""What is told of the benchmarks' JSON: ratios, and times on a GPU beside their floor."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple


class Ratio(NamedTuple):
    """A figure of a benchmark's JSON; `limit` is what it is held to, by the same file or by the script's own words."""

    file: str
    what: str
    value: Callable[[Any], float]
    limit: Callable[[Any], str] = lambda found: ""


def _step_times(setting: str, way: str, found: Any) -> float:
    return float(found["settings"][setting]["times_faster"][way])


def _by_ray(name: str, found: Any) -> float:
    engines = found["features"][name]
    return float(engines["ray"]["pictures_per_second"] / engines["local"]["pictures_per_second"])


def _recorded(kind: Any) -> float:
    return float(kind["kernel by kernel"]["step_ms"] / kind["graphs"]["step_ms"])


def _at_least(times: int, found: Any) -> str:
    return f"≥ {times}"


RATIOS = (
    Ratio("ranking", "ranking, both directions, to its bare product", lambda found: found["time_ratio"],
          lambda found: f"≤ {found['time_ratio_limit']}"),
    Ratio("ranking", "bytes above the inputs, to 1 GB", lambda found: found["memory_ratio"], lambda found: "≤ 1"),
    Ratio("cca", "CCA: time of the faster of two libraries to ours",
          lambda found: found["times_faster_than_the_faster"], lambda found: f"≥ {found['limits']['times_faster']}"),
    Ratio("cca-full", "CCA of the Entities paper at full size on a GPU: its covariances, to the floor",
          lambda found: found["covariances_times_floor"]),
    *(Ratio(file, f"tree LSTM, 512 sentences at once: nodes a second to node by node{on}",
            lambda found: found["batch_512"]["times_node_by_node"], partial(_at_least, times))
      for file, on, times in (("tree_lstm", "", 10), ("tree_lstm-gpu", " on a GPU", 100))),
    *(Ratio(file, f"tree LSTM, 64 sentences: time of its bare products to all of it{on}",
            lambda found: found["batch_64"]["share_of_products"])
      for file, on in (("tree_lstm", ""), ("tree_lstm-gpu", " on a GPU"))),
    Ratio("two_branch", "a loss of 500 pairs: time of pytorch-metric-learning, which keeps all triplets, to ours",
          lambda found: found["settings"]["sentences"]["loss_times_faster"]["pytorch-metric-learning"]),
    *(Ratio("two_branch", f"a step of {pairs} pairs: time of {way} to ours", partial(_step_times, setting, name))
      for setting, pairs in (("sentences", 500), ("phrases", 100))
      for name, way in (("loop", "a loop"), ("pytorch-metric-learning", "pytorch-metric-learning (all triplets)"))),
    Ratio("two_branch-full", "an epoch at Flickr30k's size on a GPU (tf32), to its floor",
          lambda found: found["runs"]["tf32"]["epoch_s"] / found["runs"]["tf32"]["floor_s"]),
    Ratio("recorded_steps", "a step of the trainer on a GPU (500 pairs), kernel by kernel, to the same as a CUDA graph",
          lambda found: found["kinds"]["embedding"]["times_as_fast"]),
    Ratio("recorded_steps", "the same of the similarity network",
          lambda found: found["kinds"]["similarity"]["times_as_fast"]),
    Ratio("launches-unpadded", "a step of a captioner (LSTM) on a GPU, kernel by kernel, to the same as CUDA graphs",
          lambda found: _recorded(found["kinds"]["captions, LSTM"])),
    Ratio("alignment-gpu", "alignment kernel: share of the rate of matrix products",
          lambda found: found["share_of_matrix_rate"]),
    Ratio("alignment-gpu", "alignment kernel: time of the best other way to ours",
          lambda found: found["times_as_fast_as_best_other"]),
    Ratio("concepts_order-gpu", "a step of matching with generation to one without",
          lambda found: found["times_matching"], lambda found: f"≤ {found['limit']}"),
    *(Ratio("engines", f"extraction of {what} by Ray on one machine: pictures a second to the local engine's",
            partial(_by_ray, name))
      for name, what in (("image", "vectors"), ("regions", "regions"))),
    Ratio("extraction", "extraction of regions: pictures a second to a plain loop",
          lambda found: found["against_a_plain_loop"]["ratio_to_plain_loop"]),
    Ratio("extraction", "extraction of regions: pictures a second to a pass a box",
          lambda found: found["against_a_plain_loop"]["ratio_to_a_pass_a_box"]),
    Ratio("extraction-gpu", "extraction on a GPU, to decoding alone",
          lambda found: found["by_stage"]["share_of_decoding_alone"]),
    Ratio("extraction-gpu", "the same once it runs, to its networks alone",
          lambda found: found["by_stage"]["share_of_networks_alone_between"]),
    Ratio("fisher", "Fisher vectors of 100,000 captions: seconds to the limit",
          lambda found: found["encode_and_write_s"] / found["limits"]["encode_and_write_s"], lambda found: "≤ 1"),
)  # fmt: skip


class Floor(NamedTuple):
    """Seconds of some work on a GPU, and the least that its operations or bytes could take there."""

    file: str
    what: str
    seconds: Callable[[Any], float]
    floor: Callable[[Any], float]


def _epoch(kind: str) -> tuple[Callable[[Any], float], Callable[[Any], float]]:
    return lambda found: found["runs"][kind]["epoch_s"], lambda found: found["runs"][kind]["floor_s"]


#: By how much the last losses of two ways to take the same steps may differ: compiled, dropout is drawn otherwise.
SAME_LOSS = 0.1


def same_loss(ways: Any, way: str) -> bool:
    """Whether a way to take steps ends at the loss of the eager one; where it does not, its time says nothing."""
    return bool(abs(ways[way]["last_loss"] / ways["eager"]["last_loss"] - 1) <= SAME_LOSS)


def _step(way: str) -> tuple[Callable[[Any], float], Callable[[Any], float]]:
    def seconds(found: Any) -> float:
        ways = found["steps_of_one_size"]["ways"]
        if not same_loss(ways, way):
            raise KeyError(f"{way}: another loss")
        return float(ways[way]["step_ms"] / 1e3)

    return seconds, lambda found: found["steps_of_one_size"]["floor_s"]


def _order(name: str) -> tuple[Callable[[Any], float], Callable[[Any], float]]:
    return lambda found: found[f"{name}_milliseconds"] / 1e3, lambda found: found["floors"][name]["floor_s"]


def _tree(size: int) -> tuple[Callable[[Any], float], Callable[[Any], float]]:
    return lambda found: found[f"batch_{size}"]["milliseconds"] / 1e3, lambda found: found[f"batch_{size}"]["floor_s"]


FLOORS = (
    *(Floor("two_branch-full", f"two-branch training, an epoch at Flickr30k's size, {kind}", *_epoch(kind))
      for kind in ("float32", "tf32", "bfloat16")),
    *(Floor("two_branch-full", f"a step of 500 pairs and one size (tf32), {told}", *_step(way))
      for way, told in (("eager", "as it is"), ("compiled", "compiled"), ("graph", "one CUDA graph"))),
    *(Floor("tree_lstm-gpu", f"tree LSTM, forward and back, {size} sentences", *_tree(size)) for size in (64, 512)),
    Floor("alignment-gpu", "alignment kernel, 1,000 pictures and 5,000 captions (bfloat16)",
          lambda found: found["best_ms"] / 1e3,
          lambda found: found["operations"] / max(found["matrix_operations_per_s"])),
    Floor("cca-full", "CCA of the Entities paper at full size (float64)",
          lambda found: found["seconds"], lambda found: found["floor_s"]),
    Floor("concepts_order-gpu", "concepts and order, a step of 129 pairs", *_order("matching")),
    Floor("concepts_order-gpu", "the same with generation", *_order("with_generation")),
    Floor("extraction-gpu", "extraction of 100 regions, a picture from file to store, 3,000 in all",
          lambda found: found["by_stage"]["ms_per_picture"] / 1e3,
          lambda found: found["by_stage"]["floor_ms_per_picture"] / 1e3),
    Floor("extraction-gpu", "the same once it runs",
          lambda found: 1 / found["by_stage"]["pictures_per_second_between"],
          lambda found: found["by_stage"]["floor_ms_per_picture"] / 1e3),
    Floor("extraction-gpu", "its networks alone (proposals, backbone and regions, and pixels to the card)",
          lambda found: 1 / found["by_stage"]["pictures_per_second"]["networks alone"],
          lambda found: found["by_stage"]["floors_ms_per_picture"]["operations on the device"] / 1e3),
)  # fmt: skip

"""CPU milliseconds per picture and memory of each choice of features.

    python benchmarks/settings.py CORPUS [--pictures-in PATH] [--tower TOWER] [--grounder RUN]
        [--out results/benchmarks/settings.json]

`deixis extract` with each kind of features, and `deixis index` and `deixis ground` with `deixis-base`, as separate
processes for few and for more pictures; the difference is the cost of a picture, the rest is start-up. CPU time is
about the same on a busy machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path

from reporting import write_report

from deixis.corpus import open_corpus
from deixis.files import write_text

FEW = 8
#: Regions as most recipes have them, found anew for each picture; and the ten crops of a smaller network.
REGIONS = 'crops = "whole"\nside = 384\n\n[regions]\nboxes = "{}"\ncount = {}\n'
WRITTEN = {
    "edge-boxes": REGIONS.format("edge-boxes", 200),
    "learned": REGIONS.format("learned", 100),
    "efficientnet-lite0, ten": 'backbone = "efficientnet-lite0"\ncrops = "ten"\n',
}
SENTENCE = "a man in a red shirt with a dog on the grass"


def spent(command: list[str]) -> tuple[float, int]:
    """CPU seconds of `deixis` with these arguments, and its peak memory in bytes."""
    # On a busy machine threads that wait would spend most of the time that is counted.
    environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}
    process = subprocess.Popen([sys.executable, "-m", "deixis", *command], stdout=subprocess.DEVNULL, env=environment)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"deixis {' '.join(command)} failed")
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def copied(corpus: Path, pictures_in: Path | None, some: int, folder: Path) -> list[str]:
    """The files of the first pictures, in a folder of their own."""
    opened = open_corpus(corpus, pictures=pictures_in)
    assert opened.pictures is not None
    folder.mkdir()
    files = []
    for image in opened.images[:some]:
        files.append(folder / Path(image.file).name)
        files[-1].write_bytes(opened.pictures.read(image))
    return [str(file) for file in files]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--pictures-in", type=Path)
    parser.add_argument("--tower", type=Path, help="of a run of the kind `pictures`")
    parser.add_argument("--grounder", type=Path, help="the folder of a run of the kind `grounding`")
    parser.add_argument("--pictures", type=int, default=56)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/settings.json"))
    arguments = parser.parse_args()
    given = arguments.pictures_in
    corpus = [str(arguments.corpus), *(["--pictures-in", str(given)] if given else [])]
    found, numbers = {}, count()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = {
            some: copied(arguments.corpus, given, some, folder / f"pictures {some}")
            for some in (FEW, arguments.pictures)
        }

        def extract(features: str) -> Callable[[int], list[str]]:
            def command(some: int) -> list[str]:
                out = folder / f"store {next(numbers)}"
                return ["extract", *corpus, "--features", features, "--limit", str(some), "--out", str(out)]

            return command

        def written(name: str, recipe: str) -> Callable[[int], list[str]]:
            write_text(folder / f"{name}.toml", recipe)
            return extract(str(folder / f"{name}.toml"))

        settings: dict[str, Callable[[int], list[str]]] = {
            "image": extract("image"),
            "ten-crop": extract("ten-crop"),
            "regions": extract("regions"),
            **{name: written(name, recipe) for name, recipe in WRITTEN.items()},
            "deixis-base": lambda some: [
                "index",
                str(folder / f"pictures {some}"),
                "--index",
                f"{folder}/index {next(numbers)}",
            ],
            "deixis-base, pointing": lambda some: ["ground", *files[some], SENTENCE, "--json"],
        }
        if arguments.tower:
            settings["tower"] = written("tower", f'backbone = "tower:{arguments.tower.absolute()}"\ncrops = "squash"\n')
        if arguments.grounder:
            run = f"run:{arguments.grounder.absolute()}"
            settings["the pictures themselves"] = lambda some: [
                *("ground", *files[some], SENTENCE, "--model", run, "--json")
            ]
        for setting, command in settings.items():
            # The lesser of two: the first run chooses by measurement what runs its network, and others disturb.
            (few, _), (more, peak) = (min(spent(command(some)) for _ in range(2)) for some in (FEW, arguments.pictures))
            each = (more - few) / (arguments.pictures - FEW)
            found[setting] = {
                "processor_ms_per_picture": round(1000 * each, 1),
                "start_up_processor_s": round(few - FEW * each, 2),
                "peak_megabytes": round(peak / 1e6),
            }
            print(setting, found[setting], flush=True)
    report = {
        "benchmark": "settings",
        "command": "python benchmarks/settings.py CORPUS"
        + (" --tower TOWER" if arguments.tower else "")
        + (" --grounder RUN" if arguments.grounder else ""),
        "pictures": arguments.pictures,
        "settings": found,
        "load_average": round(os.getloadavg()[0], 2),
        "cores": os.cpu_count(),
    }
    write_report(report, arguments.out)


if __name__ == "__main__":
    main()

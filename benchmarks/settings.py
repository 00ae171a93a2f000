"""What a picture costs with each built-in kind of features: processor milliseconds, and the program's memory.

    python benchmarks/settings.py CORPUS [--pictures-in PATH] [--tower TOWER] [--out results/benchmarks/settings.json]

`deixis extract` is run in processes of its own, for few pictures and for more; the
difference is what pictures cost, the rest is start-up. Processor time, since it tells the same on a machine that has
other work.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from deixis.files import write_text

FEW = 8


def extract(corpus: list[str], features: str, pictures: int, folder: Path) -> tuple[float, int]:
    """Processor seconds and the peak of memory in bytes."""
    command = [sys.executable, "-m", "deixis", "extract", *corpus, "--features", features]
    command += ["--limit", str(pictures), "--out", str(folder / f"{Path(features).stem}-{pictures}"), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed")
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--pictures-in", type=Path)
    parser.add_argument("--tower", type=Path, help="of a run of the kind `pictures`")
    parser.add_argument("--pictures", type=int, default=56)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/settings.json"))
    arguments = parser.parse_args()
    given = arguments.pictures_in
    corpus = [str(arguments.corpus), *(["--pictures-in", str(given)] if given else [])]
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = {"image": "image", "ten-crop": "ten-crop", "regions": "regions"}
        if arguments.tower:
            write_text(folder / "tower.toml", f'backbone = "tower:{arguments.tower.absolute()}"\ncrops = "squash"\n')
            settings["tower"] = str(folder / "tower.toml")
        for setting, features in settings.items():
            few, _ = extract(corpus, features, FEW, folder)
            more, peak = extract(corpus, features, arguments.pictures, folder)
            each = (more - few) / (arguments.pictures - FEW)
            found[setting] = {
                "processor_ms_per_picture": round(1000 * each, 1),
                "start_up_processor_s": round(few - FEW * each, 2),
                "peak_megabytes": round(peak / 1e6),
            }
            print(setting, found[setting], flush=True)
    told = {
        "benchmark": "settings",
        "command": f"python benchmarks/settings.py CORPUS{' --tower TOWER' if arguments.tower else ''}",
        "pictures": arguments.pictures,
        "settings": found,
        "load_average": round(os.getloadavg()[0], 2),
        "cores": os.cpu_count(),
    }
    write_text(arguments.out, json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()

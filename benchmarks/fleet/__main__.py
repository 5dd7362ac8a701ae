"""Simulate many replicas, and write docs/scale.md: python -m benchmarks.fleet

One replica is measured with words (benchmarks.fleet.one_replica). Sentences take the times of the
base model in docs/performance.json. `--turns 0` measures nothing and takes the replica of the last
run.
"""

import json
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.fleet import one_replica
from benchmarks.fleet.report import curve_table, write_scale
from benchmarks.fleet.scenarios import simulate
from benchmarks.kit.serving import serving
from benchmarks.speed.report import DOCS
from service.settings.settings import DEFAULT_BUNDLE


def main(
    turns: Annotated[int, typer.Option(help="Turns of 55 seconds that measure one replica")] = 6,
    requests: Annotated[int, typer.Option(help="Requests of each simulated load")] = 40_000,
    price: Annotated[float, typer.Option(help="Price of a replica (2 cores), an hour")] = 0.10,
    docs: Annotated[Path, typer.Option(help="Folder for scale.md, .json and .svg")] = DOCS,
) -> None:
    """Measure one replica, simulate many, and write docs/scale.md."""
    if turns:
        with serving(DEFAULT_BUNDLE) as port:
            one = one_replica.measure(port, turns)
    else:
        one = one_replica.simulate_again(json.loads((docs / "scale.json").read_text())["one"])
    typer.echo(curve_table(one["curve"]))
    write_scale({**simulate(one, DOCS, requests), "price": price}, docs)


if __name__ == "__main__":
    typer.run(main)

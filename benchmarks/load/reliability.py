"""Write docs/reliability.md: python -m benchmarks.load.reliability

Measures overload and fairness. What a long run needs is of the last run of benchmarks.load.soak.
"""

import json
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.kit.document import describe_machine, machine_line, table
from benchmarks.load import fairness, soak
from benchmarks.load.mixed_requests import TOLERANCE
from benchmarks.load.overload import CLIENTS, COLUMNS, RECOVERED, columns, measure
from benchmarks.speed.report import DOCS

HEAD = """# Reliability

After this page you know what overload, unfair clients and a long run do to a service.

`python -m benchmarks.load.reliability` writes this page; do not edit it.

{machine}

## Overload

The default model answers requests of mixed kinds: 60 % words, 12 % batches of 32 words, 10 % words
with 8 beams, 8 % scores, 5 % words with all attention weights, 5 % encodings. They arrive at random
times for {seconds:g} seconds, each on a connection of its own. The rates are multiples of the
capacity: the requests a second that a closed loop of {clients} clients gets answered. It is
measured before and after each load, since the speed of the machine changes. The client shares the
cores with the service and takes more of them under overload. So one column compares right answers
by the service's CPU time. "Wrong" counts answers that differ from those that the same
requests get alone, by more than {tolerance:g} in a number, "other" all that were answered neither
with 200 nor with 429. Refused requests that do not say when to come back: {without_retry}. Recovery
is the time from the last arrival until a word is answered within {recovered:g} s.

"""


def main(
    seconds: Annotated[float, typer.Option(help="Duration of each load")] = 120.0,
    factors: Annotated[str, typer.Option(help="Multiples of the capacity")] = "2,4,6,10",
    docs: Annotated[Path, typer.Option(help="Folder for reliability.md")] = DOCS,
) -> None:
    """Measure the default model under overload, and among the largest requests."""
    rows = measure([float(each) for each in factors.split(",")], seconds)
    text = HEAD.format(
        machine=machine_line(describe_machine()),
        seconds=seconds,
        clients=CLIENTS,
        without_retry=sum(row.found.without_retry for row in rows),
        recovered=RECOVERED,
        tolerance=TOLERANCE,
    )
    text += f"{table(COLUMNS, [columns(row) for row in rows])}\n"
    text += f"{fairness.render(fairness.measure(seconds))}\n"
    text += f"## A long run\n\n{soak.paragraph(json.loads((DOCS / 'soak.json').read_text()))}"
    (docs / "reliability.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)

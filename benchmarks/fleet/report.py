"""Write docs/scale.json, the numbers of a simulated fleet, and docs/scale.md and scale.svg, which
show them."""

import json
from pathlib import Path

from benchmarks.fleet.one_replica import TOGETHER, CurveRow
from benchmarks.fleet.picture import draw_scale
from benchmarks.fleet.scenarios import (
    BEFORE,
    DEATH,
    EVENTFUL,
    LARGE,
    MOST_REPLICAS,
    NOTICED,
    PLANNED,
    REPLICAS,
    SHARES,
    STARTING,
    TARGET,
    WINDOW,
    EventRow,
    Scale,
    SizeRow,
)
from benchmarks.kit.document import machine_line, table

SECONDS = 3600  # of an hour
MILLION = 1_000_000
CORES = 2  # of a replica
ENOUGH = 0.2  # largest error of a simulation that can be relied on
EVENT_COLUMNS = ["event", "p99", "worst", "last", "sent", "429", "sent again", "failed", "replicas"]
SIZE_COLUMNS = ["load", "replicas", "cores", "p99, ms", "cost an hour", "cost of a million"]
TITLE = "p99 against load: one replica, measured and simulated, and a fleet of 20, by route"


class Priced(Scale):
    price: float  # of a replica, an hour


HEAD = """# Scale

After this page you know how many replicas a load takes, how to route requests to them, and what
happens when one dies, when all are updated, or when the load doubles.
[kubernetes.md](kubernetes.md) shows how to run them.

`python -m benchmarks.fleet` writes this page; do not edit it. It measures one replica, and
simulates fleets of them.

{machine}

## One replica

A replica is one container with two cores.

{holds}
A request with many words costs far less than as many requests with one, since most of the time of
a word is HTTP. While words were measured, the client shared the cores: a replica that has them
for itself holds more.

## The simulation

A simulated replica works at a measured pace: while n rows are in progress, as many are completed
in a second as the real one completed while it had n. Rows progress together, because they join and
leave between two decoding steps: at most 256 sentences, or {together} words, while others wait in
order, as they do in the HTTP process. The service's own code
(`service/http/middleware/door`) decides which requests are refused. Requests arrive at random
(Poisson), each on a connection of its own.
The table shows one simulated replica next to the measured one, in milliseconds; percentiles are
medians of those of turns of 5 seconds. Its pace was learned from other arrivals at other loads:

{curve}
{verdict}

## Routing

![p99 against load, of one replica and of a fleet](scale.svg)

{replicas} replicas of the base model get requests of one sentence ({single:.0%}) or of {large}
({several:.0%}). p99 in milliseconds, by load:

{routes}
Route to the replica with the fewest outstanding rows. A row is a source, or one of its beams or
samples. A router that cannot count rows should count requests: that is *least connections* or
*least requests* in most proxies. Round robin, the default of most proxies, is much worse.

Let requests wait in one place only: give the router no queue of its own. Each replica bounds what
it accepts by `HEED_MAX_REQUESTS` and by the time that a request has. It refuses the rest with 429
and `Retry-After`, and the router or the client can try another replica.

## What happens to a fleet

{eventful} replicas of the base model get the same requests, at {planned:.0%} of their capacity.
After {before:.0f} seconds something happens. A new replica serves {starting:.0f} seconds after it
is asked for. Clients whose requests are lost send them again after a second. The autoscaler asks
for as many replicas as bring the mean of a minute to {target} rows per replica, at most {most};
it decides every 15 seconds. The columns are the p99 in milliseconds of all requests, of the worst
{window:.0f} seconds and of the last {window:.0f}, and counts of requests.

{events}
{death}
- A rolling update costs nothing, since each new replica serves before an old one drains.
- Rows wait only when the batch of a replica is full. An autoscaler that looks at waiting rows
  alone (`heed_queue_rows`) comes too late even where the load takes five minutes to double. Rows in
  progress (`heed_running_rows`) rise in time. `deploy/kubernetes` looks at both, and at the CPU.
- No autoscaler is fast enough for a load that doubles at once. Have as many replicas as the load
  may need within the next two minutes.

## How many replicas

At {planned:.0%} of the capacity, with one replica to spare. `p99` is that of {replicas} replicas
at this load. The price of a replica is an assumption: **{price:.2f} an hour**, in any currency.
`--price` changes it.

{sizes}
More texts in one request lower these numbers more than any router does.
"""


def render(found: Priced) -> str:
    """Return the text of docs/scale.md."""
    return HEAD.format(
        machine=machine_line(found["one"]["machine"]),
        holds=table(["what", "how much", "from"], holds_rows(found["capacity"])),
        together=TOGETHER,
        curve=curve_table(found["one"]["curve"]),
        verdict=verdict(found["one"]["curve"]),
        replicas=REPLICAS,
        single=SHARES[0],
        several=SHARES[1],
        large=LARGE,
        routes=routes_table(found["routes"]),
        eventful=EVENTFUL,
        planned=PLANNED,
        before=BEFORE,
        starting=STARTING,
        target=TARGET,
        most=MOST_REPLICAS,
        window=WINDOW,
        events=table(EVENT_COLUMNS, [event_columns(row) for row in found["events"]]),
        death=death_line(found["events"]),
        price=found["price"],
        sizes=table(SIZE_COLUMNS, [size_columns(row, found["price"]) for row in found["sizes"]]),
    )


def holds_rows(capacity: dict[str, float]) -> list[list[str]]:
    performance, reliability = (
        "[performance.md](performance.md)",
        "[reliability.md](reliability.md)",
    )
    memory = "[operations.md](operations.md#limits-and-time-outs)"
    words, sentences = capacity["words"], capacity["sentences"]
    base = "base model (d_model 512), int8, 32 tokens in and out, 32 sentences a request"
    return [
        [
            "default model, a word a request",
            f"{words:.0f} words a second",
            "the pace below",
        ],
        [base, f"{sentences:.0f} sentences a second", performance],
        ["memory with the default model", "at most 1.1 GB", memory],
        [
            "a load of ten times its capacity",
            "answers for about nine tenths of the capacity, 429 for the rest",
            reliability,
        ],
    ]


def curve_table(rows: list[CurveRow]) -> str:
    columns = ["load", "requests/s"]
    for name in ("p50", "p99"):
        columns += [f"{name} measured", "simulated", "error"]
    return table(columns, [curve_columns(row) for row in rows])


def death_line(rows: list[EventRow]) -> str:
    """Return a list item on the requests that fail when a replica dies."""
    (failed,) = [row["failed"] for row in rows if row["event"] == DEATH]
    if not failed:
        return (
            "- A replica that dies loses no request if clients send theirs again. That is safe:"
            " the service\n  stores nothing."
        )
    return (
        f"- For {NOTICED:.0f} seconds the router still sends requests to a replica that has died."
        " It has the\n  fewest rows, so it gets more than any other."
        f" {failed:,} failed though clients sent theirs again.\n  Let the router try another"
        " replica where a connection fails. That is safe: the service stores\n  nothing."
    )


def verdict(rows: list[CurveRow]) -> str:
    """Return a sentence on the largest error."""
    errors = [
        abs(row["simulated"][name] / row["measured"][name] - 1)
        for row in rows
        for name in ("p50_ms", "p99_ms")
    ]
    if max(errors) <= ENOUGH:
        return f"All of these agree within {ENOUGH:.0%}."
    return (
        f"They differ by up to {max(errors):.0%}, more than {ENOUGH:.0%}: **do not rely on"
        " the latencies of words below**."
    )


def curve_columns(row: CurveRow) -> list[str]:
    found = [f"{row['share']:.0%}", f"{row['rate']:.0f}"]
    for name in ("p50_ms", "p99_ms"):
        measured, simulated = row["measured"][name], row["simulated"][name]
        found += [f"{measured:.1f}", f"{simulated:.1f}", f"{simulated / measured - 1:+.0%}"]
    return found


def routes_table(routes: dict[str, list[list[float]]]) -> str:
    loads = [load for load, _ in next(iter(routes.values()))]
    rows = [[name, *(f"{p99:.0f}" for _, p99 in points)] for name, points in routes.items()]
    return table(["route", *(f"{load:.0%}" for load in loads)], rows)


def event_columns(row: EventRow) -> list[str]:
    times = [f"{row[name]:,.0f}" for name in ("p99_ms", "worst_ms", "last_ms")]
    counts = [f"{row[name]:,}" for name in ("sent", "refused", "repeated", "failed", "replicas")]
    return [row["event"], *times, *counts]


def size_columns(row: SizeRow, price: float) -> list[str]:
    hourly = row["replicas"] * price
    million = hourly / SECONDS / row["rate"] * MILLION
    return [
        f"{row['rate']:,} {row['unit']} a second",
        f"{row['replicas']:,}",
        f"{2 * row['replicas']:,}",
        f"{row['p99_ms']:.0f}",
        f"{hourly:,.2f}",
        f"{million:.3f}",
    ]


def picture_of(found: Scale) -> bytes:
    curve = found["one"]["curve"]
    measured, simulated = (
        [(row["share"], row[name]["p99_ms"]) for row in curve] for name in ("measured", "simulated")
    )
    routes = {name: [(x, y) for x, y in points] for name, points in found["routes"].items()}
    return draw_scale(measured, simulated, routes, TITLE)


def write_scale(found: Priced, folder: Path) -> None:
    (folder / "scale.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (folder / "scale.md").write_text(render(found), encoding="utf-8")
    (folder / "scale.svg").write_bytes(picture_of(found))

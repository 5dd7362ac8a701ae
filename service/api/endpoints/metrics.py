"""GET /metrics."""

from collections.abc import Iterator
from itertools import accumulate

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from service.api.answering.responses import PROBLEMS
from service.api.reading.call import Call
from service.api.reading.json_route import JsonRoute
from service.logs import dropped_lines
from service.serving.registry import Registry
from service.wire import Histogram

EXAMPLE = """# HELP heed_requests_total Answered requests
# TYPE heed_requests_total counter
heed_requests_total{code="200",route="/v1/decode"} 2.0
"""
router = APIRouter(responses=PROBLEMS, route_class=JsonRoute)


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    responses={200: {"content": {"text/plain": {"example": EXAMPLE}}}},
    summary="Report metrics for Prometheus",
    tags=["service"],
)
async def metrics(call: Call) -> PlainTextResponse:
    """Return counts and durations of requests, and the state of each model, in Prometheus' text
    format. The numbers of a model are at most a few seconds old."""
    text = generate_latest(call.service.metrics.registry)
    return PlainTextResponse(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)


class ModelCollector(Collector):
    """Reads the metrics of the models that are served, and of the log, when Prometheus asks.

    An engine, in its own process, reports its numbers to its supervisor every second, so that a
    step only counts. The supervisor adds up the numbers of all engines that it has started.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        name = ["model"]
        waiting = GaugeMetricFamily("heed_queue_rows", "Rows that wait for a worker", labels=name)
        running = GaugeMetricFamily("heed_running_rows", "Rows that are decoded", labels=name)
        restarts = CounterMetricFamily(
            "heed_engine_restarts_total", "Engines started in the place of others", labels=name
        )
        seconds = HistogramMetricFamily(
            "heed_step_duration_seconds", "Time of a decoding step", labels=name
        )
        rows = HistogramMetricFamily("heed_batch_rows", "Rows of a decoding step", labels=name)
        info = GaugeMetricFamily(
            "heed_model_info", "1 for each model", labels=["model", "precision", "provider"]
        )
        for model in self._registry.served.values():
            supervisor, opened, label = model.supervisor, model.engine.opened, [model.name]
            waiting.add_metric(label, supervisor.reported.waiting)
            running.add_metric(label, supervisor.reported.rows)
            restarts.add_metric(label, supervisor.restarts)
            add_histogram(seconds, label, supervisor.steps.seconds)
            add_histogram(rows, label, supervisor.steps.rows)
            info.add_metric([*label, opened.precision, opened.provider], 1)
        yield from (waiting, running, restarts, seconds, rows, info)
        yield CounterMetricFamily(
            "heed_log_lines_dropped_total", "Lines that the log could not take", dropped_lines()
        )


def add_histogram(family: HistogramMetricFamily, labels: list[str], counted: Histogram) -> None:
    """Add a histogram. Prometheus counts in each bucket all observations up to its bound."""
    bounds = [*map(floatToGoString, counted.bounds), "+Inf"]
    buckets = [*zip(bounds, accumulate(counted.counts), strict=True)]
    family.add_metric(labels, buckets, counted.sum)

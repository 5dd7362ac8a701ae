"""Metrics of requests, for Prometheus. Labels have few values, whatever clients send: the paths of
the service, statuses, codes of errors, stages, and the models that are served."""

from collections.abc import Callable
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics

from service.http.limits import Record
from service.wire import SECONDS


class RequestMetrics:
    """Counts requests that have ended; `registry` also holds the metrics of others."""

    def __init__(self) -> None:
        disable_created_metrics()  # Prometheus cannot use them from this format
        self.registry = CollectorRegistry()

        # Cached, because labels() takes as long as to count.
        def counter(name: str, what: str, *labels: str) -> Callable[..., Counter]:
            return cache(Counter(name, what, labels, "heed", registry=self.registry).labels)

        def histogram(name: str, what: str, *labels: str) -> Callable[..., Histogram]:
            made = Histogram(name, what, labels, "heed", registry=self.registry, buckets=SECONDS)
            return cache(made.labels)

        self._requests = counter("requests_total", "Answered requests", "route", "code")
        self._rejected = counter(
            "rejected_total", "Requests that got a problem document, by its code", "reason"
        )
        self._duration = histogram(
            "request_duration_seconds",
            "From the headers of a request to the end of its answer",
            "route",
        )
        self._queue = histogram(
            "queue_duration_seconds", "Wait of the slowest source for the encoder", "model"
        )
        self._stages = histogram(
            "stage_duration_seconds",
            "Time of the slowest source in each stage of a request but the queue",
            "model",
            "stage",
        )
        self._first_token = histogram(
            "time_to_first_token_seconds",
            "From the headers of a request to the first event of its stream",
            "model",
        )
        self._generated = counter("generated_tokens_total", "Tokens of hypotheses", "model")
        self._drafted = counter(
            "drafted_tokens_total", "Tokens of drafts that were checked", "model"
        )
        self._accepted = counter(
            "accepted_tokens_total",
            "Checked tokens of drafts that the search itself chose",
            "model",
        )
        self._sources = counter("source_tokens_total", "Tokens of answered sources", "model")
        self._attention = counter(
            "attention_bytes_total", "Attention weights in answers, as float32", "model"
        )

    def count_refused(self, route: str, status: int, reason: str) -> None:
        """Count a request that was refused as soon as its headers were read. Its duration is not
        known."""
        self._requests(route, status).inc()
        self._rejected(reason).inc()

    def count(self, record: Record, route: str, status: int, seconds: float) -> None:
        """Count a request that took `seconds`."""
        self._requests(route, status).inc()
        self._duration(route).observe(seconds)
        if record.error:
            self._rejected(record.error.code).inc()
        model = record.model or ""  # /v1/attend computes without one
        for name, stage in record.stages.items():
            if name == "queue":
                self._queue(model).observe(stage.seconds)
            else:
                self._stages(model, name).observe(stage.seconds)
        if record.first_token is not None:
            self._first_token(model).observe(record.first_token)
        self._count_sizes(record, model)

    def _count_sizes(self, record: Record, model: str) -> None:
        """Count tokens and bytes. A counter of a model appears with its first ones."""
        if record.source_tokens and not record.error:
            self._sources(model).inc(record.source_tokens)
        if record.generated_tokens:
            self._generated(model).inc(record.generated_tokens)
        if record.drafted_tokens:
            self._drafted(model).inc(record.drafted_tokens)
            self._accepted(model).inc(record.accepted_tokens)
        if record.attention_bytes:
            self._attention(model).inc(record.attention_bytes)

"""Spans: a request's own, with one for each stage below it, in the client's trace."""

import os
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
from fastapi.testclient import TestClient
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from structlog.testing import capture_logs

from service.app import create_app
from service.settings.settings import Provider, Settings
from tests.service.processes import run_python, running

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADERS = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


@pytest.fixture(scope="module")
def exporter():
    return InMemorySpanExporter()


@pytest.fixture(scope="module")
def traced(tiny, exporter):
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    settings = Settings(bundles=[tiny], provider=Provider.cpu)
    with TestClient(create_app(settings, tracing=provider), "http://localhost") as client:
        yield client


def check_times(answer, request, spans):
    """Check the times of stages, and return those that Server-Timing names."""
    timing = dict(each.split(";dur=") for each in answer.headers["server-timing"].split(", "))
    for name, span in spans.items():
        took = (span.end_time - span.start_time) / 1e6
        assert took == pytest.approx(float(timing[name]), abs=2e-3)
        assert request.start_time - 1e6 <= span.start_time
        assert span.end_time <= request.end_time + 1e6
    return timing


@pytest.mark.parametrize(
    ("path", "body", "stages"),
    [
        ("/v1/decode", {}, ["tokenize", "queue", "encode", "decode", "serialize"]),
        (
            "/v1/attention",
            {},
            ["tokenize", "queue", "encode", "decode", "attention", "serialize"],
        ),
        (
            "/v1/attribution",
            {"target": "abc"},
            ["tokenize", "queue", "encode", "score", "serialize"],
        ),
        ("/v1/score", {"target": "abc"}, ["tokenize", "queue", "encode", "score", "serialize"]),
        ("/v1/encode", {}, ["tokenize", "queue", "encode", "serialize"]),
        ("/v1/tokenize", None, ["tokenize", "serialize"]),
    ],
)
def test_every_stage_is_a_span_below_that_of_the_request(traced, exporter, path, body, stages):
    """Oracle: Server-Timing, which says how long each stage took."""
    exporter.clear()
    sent = {"text": "red"} if body is None else {"source": "red", **body}
    with capture_logs() as logged:
        answer = traced.post(path, json=sent, headers=HEADERS)
    assert answer.status_code == 200
    spans = {span.name: span for span in exporter.get_finished_spans()}
    request = spans.pop(f"POST {path}")
    assert (request.context.trace_id, request.parent.span_id) == (int(TRACE, 16), int(PARENT, 16))
    assert [line.get("trace_id") for line in logged] == [TRACE], logged
    assert sorted(spans, key=lambda name: spans[name].start_time) == stages
    assert set(check_times(answer, request, spans)) == set(stages)
    assert {span.parent.span_id for span in spans.values()} == {request.context.span_id}


def test_each_stage_of_many_sources_is_that_of_the_slowest(traced, exporter):
    exporter.clear()
    body = {"source": ["red"] * 60, "beam_size": 4, "attention": {}}
    answer = traced.post("/v1/decode", json=body)
    spans = {span.name: span for span in exporter.get_finished_spans()}
    check_times(answer, spans.pop("POST /v1/decode"), spans)


def test_a_stream_is_traced(traced, exporter):
    exporter.clear()
    traced.post("/v1/decode", json={"source": "red", "stream": True})
    names = {span.name for span in exporter.get_finished_spans()}
    assert names == {"POST /v1/decode", "tokenize", "queue", "encode", "decode"}


def test_probes_and_requests_that_the_client_does_not_sample_are_not_traced(traced, exporter):
    exporter.clear()
    for path in ("/livez", "/readyz", "/readyz/tiny", "/metrics"):
        assert traced.get(path).status_code == 200
    unsampled = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
    assert traced.post("/v1/decode", json={"source": "red"}, headers=unsampled).status_code == 200
    assert exporter.get_finished_spans() == ()


OPEN = """
import sys
from service.http.middleware.tracing import open_tracing
from service.logs import configure_logs, flush_logs
configure_logs("json")
provider = open_tracing()
print(type(provider).__name__, "opentelemetry.sdk" in sys.modules)
if provider: print(provider.resource.attributes["service.name"])
flush_logs()
"""
COLLECTOR = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
HIDE = "import sys; sys.modules['opentelemetry.sdk'] = None\n"


@pytest.mark.parametrize(
    ("code", "variables", "said"),
    [
        (OPEN, {}, ["NoneType False"]),
        (OPEN, {**COLLECTOR, "OTEL_TRACES_EXPORTER": "none"}, ["NoneType False"]),
        (OPEN, COLLECTOR, ["TracerProvider True", "heed"]),
        (OPEN, {**COLLECTOR, "OTEL_SERVICE_NAME": "words"}, ["TracerProvider True", "words"]),
        (HIDE + OPEN, COLLECTOR, ["NoneType True", "run pip install 'heed-server[otel]'"]),
    ],
)
def test_tracing_starts_only_if_a_collector_is_named(code, variables, said):
    others = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = run_python("-c", code, env={**others, **variables})
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(said)
    assert all(part in line for part, line in zip(said, lines, strict=True))


class Collector(BaseHTTPRequestHandler):
    """A collector that counts the bytes of spans, or never answers while it has no count."""

    taken: ClassVar[list[int] | None] = None

    def do_POST(self):
        if self.taken is None:
            threading.Event().wait(60)
        else:
            self.taken.append(len(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("taken", [[], None], ids=["a collector", "one that never answers"])
def test_the_last_spans_are_sent_before_the_end_or_given_up(monkeypatch, taken):
    """The service ends with status 1 if it cannot end in time."""
    monkeypatch.setattr(Collector, "taken", taken)
    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as collector:
        collector.daemon_threads, collector.block_on_close = True, False
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{collector.server_port}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1000")  # more than the service has to end
        with running("-m", "service") as (process, port):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models").close()
            process.terminate()
            process.communicate(timeout=60)
        collector.shutdown()
    assert process.returncode == 0
    assert taken is None or len(taken) == 1

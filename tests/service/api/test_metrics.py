"""/metrics: what is counted, and that nothing of it grows with what clients send."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.serving import supervisor
from tests.conftest import opened
from tests.waiting import wait_until

TEXT = "text/plain; version=0.0.4; charset=utf-8"


@pytest.fixture(scope="module")
def service(tiny):
    """A service whose engine reports often, and that nobody else uses."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisor, "CHECK_EVERY", 0.03)
        patch.setattr(supervisor, "FIRST_PAUSE", 0.05)
        with opened(tiny) as client:
            yield client


def read(client):
    """Samples of /metrics: {(name, label values...): value}."""
    answer = client.get("/metrics")
    assert (answer.status_code, answer.headers["content-type"]) == (200, TEXT)
    return {
        (sample.name.removeprefix("heed_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def wait(client, condition):
    """Wait until the samples meet a condition."""
    return wait_until(lambda: condition(samples := read(client)) and samples)


def settled(client):
    """Samples that hold all steps of the requests that have been answered."""
    supervisor = client.app.state.service.registry.served["tiny"].supervisor
    for _ in range(2):  # the next report may have been on its way
        last = supervisor.reported
        wait(client, lambda _: supervisor.reported is not last)  # noqa: B023
    return read(client)


def grown(client, work, read=read):
    """How much each sample grows while `work` is done."""
    before = read(client)
    work()
    after = read(client)
    return {key: value - before.get(key, 0.0) for key, value in after.items()}


def test_an_answer_is_counted_as_it_says(service):
    answers = []

    def work():
        body = {"source": ["red", "blue"], "beam_size": 2, "attention": {}}
        answers.append(service.post("/v1/decode", json=body))

    found = grown(service, work)
    document = answers[0].json()
    usage = document["usage"]
    assert found["source_tokens_total", "tiny"] == usage["source_tokens"]
    assert found["generated_tokens_total", "tiny"] == usage["target_tokens"]
    shapes = [
        block["shape"]
        for result in document["results"]
        for hypothesis in result["hypotheses"]
        for block in hypothesis["attention"]
    ]
    numbers = sum(a * b * c * d for a, b, c, d in shapes)
    assert found["attention_bytes_total", "tiny"] == 4 * numbers > 0
    assert found["requests_total", "200", "/v1/decode"] == 1
    assert found["request_duration_seconds_count", "/v1/decode"] == 1
    timing = dict(each.split(";dur=") for each in answers[0].headers["server-timing"].split(", "))
    assert timing.keys() == {"tokenize", "queue", "encode", "decode", "attention", "serialize"}
    for stage, milliseconds in timing.items():
        key = ("stage_duration_seconds", "tiny", stage)
        if stage == "queue":
            key = ("queue_duration_seconds", "tiny")
        name, *labels = key
        assert found[f"{name}_count", *labels] == 1
        assert found[f"{name}_sum", *labels] == pytest.approx(float(milliseconds) / 1000, abs=1e-6)


def test_a_stream_is_counted_with_its_first_token(service):
    body = {"source": "red", "stream": True, "max_new_tokens": 7, "min_new_tokens": 7}
    found = grown(service, lambda: service.post("/v1/decode", json=body))
    assert found["time_to_first_token_seconds_count", "tiny"] == 1
    first = found["time_to_first_token_seconds_sum", "tiny"]
    assert 0 < first <= found["request_duration_seconds_sum", "/v1/decode"]
    assert found["generated_tokens_total", "tiny"] == 7


def test_every_step_is_counted_with_its_rows(service):
    """A request alone decodes as many steps as it has tokens; each takes all of its rows."""

    def work():
        body = {"source": "red", "max_new_tokens": 9, "min_new_tokens": 9, "num_hypotheses": 3}
        for temperature in (0.5, 1.0):
            answer = service.post("/v1/decode", json={**body, "temperature": temperature})
            assert answer.json()["usage"]["target_tokens"] == 27

    found = grown(service, work, settled)
    assert found["batch_rows_count", "tiny"] == found["step_duration_seconds_count", "tiny"] == 18
    assert found["batch_rows_sum", "tiny"] == 18 * 3
    assert [found["batch_rows_bucket", le, "tiny"] for le in ("2.0", "4.0")] == [0, 18]


def test_rows_that_are_decoded_or_wait_are_shown_while_they_do(service):
    body = {"source": ["red"] * 64, "beam_size": 4, "max_new_tokens": 40, "min_new_tokens": 40}
    with ThreadPoolExecutor() as pool:
        busy = [pool.submit(service.post, "/v1/decode", json=body) for _ in range(2)]
        shown = wait(service, lambda samples: samples["running_rows", "tiny"] > 0)
        assert [each.result().status_code for each in busy] == [200, 200]
    assert shown["running_rows", "tiny"] + shown["queue_rows", "tiny"] <= 2 * 64 * 4
    idle = wait(service, lambda samples: samples["running_rows", "tiny"] == 0)
    assert idle["queue_rows", "tiny"] == 0


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ({"source": 5}, 422, "invalid"),
        ({"source": ["red"] * 300}, 413, "too_large"),
        ({"source": "red", "model": "x" * 50}, 404, "unknown_model"),
    ],
)
def test_a_refusal_is_counted_by_its_code(service, body, status, reason):
    found = grown(service, lambda: service.post("/v1/decode", json=body))
    assert found["rejected_total", reason] == 1
    assert found["requests_total", str(status), "/v1/decode"] == 1
    assert found.get(("source_tokens_total", "tiny"), 0) == 0


def test_no_label_grows_with_what_clients_send(service):
    service.get("/nothing")
    service.post("/v1/decode", json={"source": "red", "model": "unknown"})
    service.get("/v1/models/unknown")
    before = read(service).keys()
    for i in range(50):
        service.get(f"/nothing/{i}")
        service.post(f"/v1/decode/{i}", json={})
        service.get(f"/v1/models/{i}")
        service.request(f"METHOD{i}", "/v1/decode")
        service.post("/v1/decode", json={"source": "red", "model": f"model {i}"})
    new = read(service).keys() - before
    assert {key[1:] for key in new if key[0] == "requests_total"} <= {
        ("404", "other"),
        ("405", "/v1/decode"),
    }
    assert len(new) < 50


def test_counters_never_go_down_when_an_engine_is_replaced(service):
    post = {"source": "red", "max_new_tokens": 9, "min_new_tokens": 9}
    service.post("/v1/decode", json=post)
    before = wait(service, lambda samples: samples["batch_rows_count", "tiny"] >= 9)
    model = service.app.state.service.registry.served["tiny"]
    restarts = model.supervisor.restarts
    os.kill(model.engine.process.pid, signal.SIGKILL)
    seen = [before]
    while model.supervisor.restarts == restarts:
        seen.append(read(service))
    assert seen[-1]["running_rows", "tiny"] == 0
    service.post("/v1/decode", json=post)
    steps = ("step_duration_seconds_count", "tiny")
    seen.append(wait(service, lambda samples: samples[steps] >= before[steps] + 9))
    assert seen[-1]["engine_restarts_total", "tiny"] == restarts + 1
    gauges = {"running_rows", "queue_rows", "model_info"}
    for earlier, later in pairwise(seen):
        for key, value in earlier.items():
            assert later[key] >= value or key[0] in gauges, key


def test_a_model_is_described(service):
    assert read(service)["model_info", "tiny", "fp32", "CPUExecutionProvider"] == 1


def test_the_openapi_document_shows_real_lines(service):
    operation = service.get("/openapi.json").json()["paths"]["/metrics"]["get"]
    service.post("/v1/decode", json={"source": "red"})
    shown = operation["responses"]["200"]["content"]["text/plain"]["example"].splitlines()
    lines = service.get("/metrics").text.splitlines()
    assert shown[:2] == [line for line in lines if line in shown[:2]]
    assert any(line.startswith(shown[2].rpartition(" ")[0]) for line in lines)

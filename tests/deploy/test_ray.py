"""Two replicas on Ray Serve answer as one service does, and none of their clients is let down."""

import json
import os
import re
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import httpx2
import pytest

from benchmarks.kit.memory import family
from benchmarks.ray.cluster import Cluster, application
from service.settings.settings import DEFAULT_BUNDLE
from tests.conftest import edit_manifest
from tests.documentation import examples_of

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not find_spec("ray"), reason="needs ray: pip install -e '.[ray]'"),
]
LATEST = 90  # seconds
VARYING = {"connection", "date", "server", "server-timing", "transfer-encoding"}  # headers
WORDS = {"source": ["photograph", "through", "heed"] * 5}
LONG = {"source": "transformer", "min_new_tokens": 60, "stream": True}
RUNNING_ROWS = re.compile(r"^heed_running_rows\S* [1-9]", re.M)
REQUESTS = [
    ("GET", "/", None, "*/*"),
    ("GET", "/docs", None, "*/*"),
    ("GET", "/openapi.json", None, "*/*"),
    ("GET", "/web/page/app.js", None, "*/*"),
    ("GET", "/v1/models/g2p-en", None, "text/markdown"),
    ("GET", "/v1/models/g2p-en", None, "image/png"),
    ("GET", "/readyz/other", None, "*/*"),
    ("GET", "/nothing", None, "*/*"),
    ("HEAD", "/livez", None, "*/*"),
    ("OPTIONS", "/v1/decode", None, "*/*"),
    ("DELETE", "/v1/decode", None, "*/*"),
    ("POST", "/v1/decode", b"{", "*/*"),
    ("POST", "/v1/decode", b'{"source": 3}', "*/*"),
    ("POST", "/v1/decode", b'{"source": "heed", "model": "other"}', "*/*"),
    ("POST", "/v1/decode", b'{"source": "heed"}', "image/png"),
    ("POST", "/v1/decode", b" " * (2 << 20), "*/*"),
    ("POST", "/v1/decode", json.dumps({"source": ["a"] * 257}).encode(), "*/*"),
    *(
        ("POST", "/v1/attention", b'{"source": "heed"}', kind)
        for kind in (
            "application/x-npz",
            "application/vnd.safetensors",
            "image/svg+xml",
            "image/png",
            "text/html",
        )
    ),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    cluster = Cluster(tmp_path_factory.mktemp("ray"), cores=2)
    yield cluster
    cluster.close()


def deploy(cluster, *, num_replicas=2, options=None, **settings):
    deployment = {"num_replicas": num_replicas, **(options or {})}
    return cluster.deploy(application(deployment, **settings))


@pytest.fixture
def replicas(cluster):
    """The cluster with two replicas of the default model."""
    assert deploy(cluster)[0] == "RUNNING"
    return cluster


def engines_of(cluster):
    """The processes of the replicas, and the engines of each."""
    replicas = [pid for pid in cluster.processes() if b"ServeReplica" in command_of(pid)]
    return {
        replica: [pid for pid in family(replica) if b"service.engine" in command_of(pid)]
        for replica in replicas
    }


def command_of(pid):
    with suppress(OSError):  # it has ended
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def is_alive(pid):
    return command_of(pid) != b""


def until(holds):
    """Wait until `holds()`, at most LATEST seconds, and return whether it does."""
    end = time.monotonic() + LATEST
    while not (held := holds()) and time.monotonic() < end:
        time.sleep(0.1)
    return held


def send(url, method, path, content, accept):
    headers = {
        "Accept": accept,
        "Content-Type": "application/json",
        "Host": "localhost:8000",  # the page names it
        "X-Request-Id": "example",
    }
    answer = httpx2.request(method, url + path, content=content, headers=headers, timeout=60)
    kept = {name: value for name, value in answer.headers.items() if name not in VARYING}
    return answer.status_code, kept, answer.content


def decode(url, body):
    return httpx2.post(f"{url}/v1/decode", json=body, timeout=90)


@contextmanager
def load(url, *, retries):
    """Eight clients that ask again and again. Yields their answers, which end with the context;
    with `retries`, an answer of 503 is followed by the same request."""
    answers, ended = [], threading.Event()

    def ask():
        while not ended.is_set():
            answer = decode(url, WORDS)
            while retries and answer.status_code == 503:
                time.sleep(float(answer.headers["retry-after"]))
                answer = decode(url, WORDS)
            answers.append(answer)

    with ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(ask) for _ in range(8)]
        try:
            assert until(lambda: len(answers) > 16)
            yield answers
            count = len(answers)
            assert until(lambda: len(answers) > count + 16)
        finally:
            ended.set()
    for each in asking:
        each.result()


def test_every_endpoint_answers_byte_by_byte_as_one_service(replicas, server):
    document = httpx2.get(f"{server}/openapi.json").json()
    examples = [
        ("GET" if body is None else "POST", path.replace("{name}", "g2p-en"), body)
        for path, _, body in examples_of(document)
    ]
    bodies = [
        (method, path, None if body is None else json.dumps(body).encode(), "*/*")
        for method, path, body in examples
    ]
    assert len(bodies) > 30
    for request in [*bodies, *REQUESTS]:
        assert send(replicas.url, *request) == send(server, *request), request


def test_a_stream_arrives_piece_by_piece(replicas, server):
    with httpx2.stream("POST", f"{replicas.url}/v1/decode", json=LONG, timeout=60) as answer:
        pieces = [*answer.iter_raw()]
    assert len(pieces) > 20
    assert pieces[0].count(b"event: ") == 1
    assert b"".join(pieces) == decode(server, LONG).content


def test_requests_beyond_what_all_replicas_accept_are_refused_by_the_service(cluster):
    assert deploy(cluster, max_requests=1)[0] == "RUNNING"
    with ThreadPoolExecutor(40) as pool:
        answers = [*pool.map(lambda _: decode(cluster.url, WORDS), range(80))]
    refused = [answer for answer in answers if answer.status_code != 200]
    assert 0 < len(refused) < len(answers)
    for answer in refused:
        assert answer.status_code == 429
        assert answer.headers["content-type"] == "application/problem+json"
        assert int(answer.headers["retry-after"]) >= 1
        problem = answer.json()
        assert problem["code"] == "overloaded"
        assert "the limit of 1 requests in progress is reached: try again in" in problem["detail"]


def test_a_new_version_is_deployed_without_a_failed_request(replicas):
    before = engines_of(replicas)
    with load(replicas.url, retries=False) as answers:
        assert deploy(replicas, max_requests=150)[0] == "RUNNING"
        assert until(lambda: len(engines_of(replicas)) == 2)
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert not before.keys() & engines_of(replicas).keys()
    assert not any(is_alive(engine) for engines in before.values() for engine in engines)


def test_a_killed_replica_is_replaced_and_loses_no_request_that_is_sent_again(replicas):
    killed, (engine,) = next(iter(engines_of(replicas).items()))
    with load(replicas.url, retries=True) as answers:
        os.kill(killed, signal.SIGKILL)
        assert until(lambda: not is_alive(engine))
        assert until(lambda: sum(map(len, engines_of(replicas).values())) == 2)
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert killed not in engines_of(replicas)


def test_what_a_killed_replica_computed_is_answered_as_unavailable(cluster):
    assert deploy(cluster, num_replicas=1)[0] == "RUNNING"
    (replica,) = engines_of(cluster)
    with ThreadPoolExecutor(1) as pool:
        sources = {"source": ["transformer"] * 200, "beam_size": 16, "min_new_tokens": 60}
        pending = pool.submit(decode, cluster.url, sources)
        assert until(lambda: RUNNING_ROWS.search(httpx2.get(f"{cluster.url}/metrics").text))
        os.kill(replica, signal.SIGKILL)
        answer = pending.result()
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["code"] == "unavailable"


def test_a_version_that_is_not_ready_does_not_replace_one_that_is(replicas, tiny, tmp_path):
    broken = shutil.copytree(tiny, tmp_path / "broken")
    (broken / "bundle.json").write_text("{}")
    status, message = deploy(
        replicas,
        options={"max_constructor_retry_count": 1},
        bundles=f"{DEFAULT_BUNDLE},{broken}",
    )
    assert status == "DEPLOY_FAILED"
    assert "model broken could not be opened" in message
    assert decode(replicas.url, WORDS).status_code == 200


def test_replicas_follow_the_queue(cluster):
    scaling = {
        "min_replicas": 1,
        "max_replicas": 2,
        "target_ongoing_requests": 2,
        "upscale_delay_s": 1,
        "downscale_delay_s": 1,
    }
    assert (
        deploy(cluster, num_replicas=None, options={"autoscaling_config": scaling})[0] == "RUNNING"
    )
    assert until(lambda: len(engines_of(cluster)) == 1)
    with load(cluster.url, retries=False) as answers:
        assert until(lambda: sum(map(len, engines_of(cluster).values())) == 2)
    assert until(lambda: len(engines_of(cluster)) == 1)
    assert {answer.status_code for answer in answers} == {200}


def test_models_are_opened_and_closed_as_requests_name_them(cluster, tiny, tmp_path):
    names = ["one", "two", "three"]
    for name in names:
        edit_manifest(shutil.copytree(tiny, tmp_path / name), name=name)
    (tmp_path / "broken").mkdir()
    assert deploy(cluster, models=str(tmp_path), models_per_replica=1)[0] == "RUNNING"

    def ask(name):
        body = {"source": "one red", "model": name}
        header = {"serve_multiplexed_model_id": name}
        return httpx2.post(f"{cluster.url}/v1/decode", json=body, headers=header, timeout=60)

    with ThreadPoolExecutor(6) as pool:
        answers = [*pool.map(ask, names * 6)]
    assert [answer.json().get("model") for answer in answers] == names * 6
    assert until(lambda: all(len(engines) <= 2 for engines in engines_of(cluster).values()))
    assert ask("other").json()["code"] == "unknown_model"
    assert ask("../one").json()["code"] == "unknown_model"
    broken = ask("broken")
    assert (broken.status_code, broken.json()["code"]) == (503, "unavailable")
    assert str(tmp_path) not in broken.text


def test_a_model_is_opened_only_with_a_key(cluster, tiny, tmp_path):
    """Also on a path that finds the key in the body."""
    edit_manifest(shutil.copytree(tiny, tmp_path / "models" / "other"), name="other")
    keys = tmp_path / "keys"
    keys.write_text("a-key-of-one-client")
    settings = {"models": str(tmp_path / "models"), "api_keys_file": str(keys)}
    outcome = deploy(cluster, num_replicas=1, protocols="libretranslate", **settings)
    assert outcome[0] == "RUNNING"
    key = {"Authorization": "Bearer a-key-of-one-client"}

    def models_after(path, headers):
        named = {"serve_multiplexed_model_id": "other", **headers}
        httpx2.post(f"{cluster.url}{path}", json={}, headers=named, timeout=60)
        found = httpx2.get(f"{cluster.url}/v1/models", headers=key).json()
        return {each["name"] for each in found["models"]}

    assert models_after("/detect", {}) == {"g2p-en"}
    assert models_after("/translate", {}) == {"g2p-en"}
    assert models_after("/translate", key) == {"g2p-en", "other"}

"""Models come and go while the service runs, and no request is lost."""

import hashlib
import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from service.errors import StartupError
from service.http.middleware.keys import read_admin_key
from service.settings.settings import Settings
from tests.conftest import edit_manifest, opened
from tests.waiting import wait_until

ADMIN = "admin-0123456789abcdef"
CLIENT = "client-0123456789abcdef"
KEY = {"Authorization": f"Bearer {ADMIN}"}
OPERATIONS = {"load": {"path": "second"}, "reload": {}, "unload": {}}


def write_models(folder, tiny):
    """Write the bundles `first` and `second`, and remove all else in and around the folder."""
    shutil.rmtree(folder.parent)
    for name in ("first", "second"):
        edit_manifest(shutil.copytree(tiny, folder / name), name=name)
    return folder


@pytest.fixture(scope="module")
def service(tiny, tmp_path_factory):
    """The service with the model `first`, and HEED_MODELS."""
    models = write_models(tmp_path_factory.mktemp("administration") / "models", tiny)
    with opened(models / "first", models=models, admin_key=ADMIN) as client:
        yield client, models


@pytest.fixture
def folder(service, tiny):
    """HEED_MODELS, as it was at first."""
    return write_models(service[1], tiny)


@pytest.fixture
def client(service, folder):
    """The service with the model `first` of the folder."""
    client, _ = service
    served = client.get("/v1/models").json()["models"]
    if [each["version"] for each in served] != [version_of(folder / "first")]:
        for each in served:
            change(client, "unload", each["name"])
        assert change(client, "load", path="first").is_success
    return client


def version_of(bundle):
    return hashlib.sha256((bundle / "bundle.json").read_bytes()).hexdigest()


def change(client, operation, name="first", headers=KEY, **body):
    path = f"/v1/models/{name}/{operation}"
    return client.post(path, json=body or None, headers=headers)


def decode(client, **body):
    return client.post("/v1/decode", json={"source": "red", **body})


def names(client):
    return [model["name"] for model in client.get("/v1/models").json()["models"]]


@pytest.mark.parametrize(("operation", "body"), OPERATIONS.items())
def test_nothing_changes_for_clients_that_exclude_the_answer(client, operation, body):
    name = "second" if operation == "load" else "first"
    served = client.app.state.service.registry.served["first"]
    refused = change(client, operation, name, {**KEY, "Accept": "text/html"}, **body)
    assert refused.status_code == 406
    assert names(client) == ["first"]
    assert client.app.state.service.registry.served["first"] is served


def test_a_model_is_loaded_and_unloaded(client):
    alone = decode(client).json()["results"]
    assert change(client, "load", "second", path="second").json()["name"] == "second"
    assert names(client) == ["first", "second"]
    assert decode(client, model="second").json()["results"] == alone
    assert decode(client).status_code == 422  # several are served: name one
    assert change(client, "unload").json() == {"status": "ok"}
    assert names(client) == ["second"]
    assert decode(client).json()["model"] == "second"
    assert decode(client, model="first").status_code == 404
    assert change(client, "unload", "second").status_code == 200
    assert decode(client).json()["code"] == "unavailable"
    assert client.get("/readyz").status_code == 503
    assert change(client, "load", path="first").status_code == 200
    assert decode(client).json()["results"] == alone


def test_the_examples_of_the_documentation_follow_the_models(client):
    def shown():
        document = client.get("/openapi.json").json()
        content = document["paths"]["/v1/decode"]["post"]["requestBody"]["content"]
        return content["application/json"]["examples"]["simple"]["value"]["model"]

    assert shown() == "first"
    change(client, "load", "second", path="second")
    change(client, "unload")
    assert shown() == "second"


@pytest.mark.parametrize("operation", ["reload", "unload"])
def test_what_takes_no_body_refuses_one(client, operation):
    refused = change(client, operation, path="second")
    assert refused.status_code == 422
    assert refused.json()["detail"] == "the body must be absent: no body is expected, so send none"
    assert names(client) == ["first"]


def test_reload_serves_what_the_folder_holds_now(client, folder):
    edit_manifest(folder / "first", task="something else")
    assert change(client, "reload").json()["task"] == "something else"
    assert client.get("/v1/models/first").json()["task"] == "something else"


def test_the_version_of_a_model_is_that_of_what_is_served(client, folder):
    assert client.get("/v1/models/first").json()["version"] == version_of(folder / "first")
    edit_manifest(folder / "first", task="something else")
    assert change(client, "reload").json()["version"] == version_of(folder / "first")


def test_a_reload_that_fails_changes_nothing(client, folder):
    (folder / "first" / "parity.npz").unlink()
    refused = change(client, "reload")
    assert refused.status_code == 422
    assert "parity.npz is missing" in refused.json()["detail"]
    assert decode(client).status_code == 200
    assert client.get("/readyz").status_code == 200


@pytest.mark.parametrize("reloads", [2, pytest.param(10, marks=pytest.mark.long)])
def test_reloads_under_load_lose_no_request(client, reloads):
    """Six clients send the next request when the last is answered, some as streams."""
    done, expected, answers = threading.Event(), decode(client).json(), []

    def ask(streams):
        while not done.is_set():
            answer = decode(client, stream=streams, source=["red"] * 3)
            answers.append(answer.status_code == 200 and "error" not in answer.text)

    engines = {id(client.app.state.service.registry.served["first"].engine)}
    with ThreadPoolExecutor(6) as pool:
        asking = [pool.submit(ask, i % 2 == 0) for i in range(6)]
        try:
            for count in range(1, reloads + 1):
                assert change(client, "reload").status_code == 200
                engines.add(id(client.app.state.service.registry.served["first"].engine))
                wait_until(lambda count=count: len(answers) > 10 * count)
        finally:
            done.set()
    assert not any(each.exception() for each in asking)
    assert len(engines) > 1
    assert all(answers)
    assert decode(client).json() == expected


@pytest.mark.parametrize(
    "body", [{}, {"stream": True}, {"beam_size": 99}, {"max_new_tokens": 10**6}, {"attention": {}}]
)
def test_a_request_uses_its_model_until_it_is_answered(client, monkeypatch, body):
    model = client.app.state.service.registry.served["first"]
    submit, users = model.engine.submit, []

    def count_and_submit(*arguments):
        users.append(model.users)
        return submit(*arguments)

    monkeypatch.setattr(model.engine, "submit", count_and_submit)
    answer = decode(client, **body)
    assert users == ([1] if answer.status_code == 200 else [])
    assert model.users == 0
    assert model.unused.is_set()


def test_an_unload_lets_requests_finish(client):
    """Clients that do not stop asking: each is answered, or told that no model is left."""

    def ask(_):
        statuses = [200]
        while statuses[-1] == 200:
            statuses.append(decode(client, source=["red"] * 20).status_code)
        return statuses

    with ThreadPoolExecutor(6) as pool:
        asking = [pool.submit(ask, i) for i in range(6)]
        assert change(client, "unload").status_code == 200
        statuses = [each.result() for each in asking]
    assert {status for each in statuses for status in each} == {200, 503}


def test_one_operation_at_a_time_changes_a_model(client, may_start):
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(change, client, "reload") for _ in range(4)]
        wait_until(lambda: sum(each.done() for each in asked) == 3)
        may_start.set()
    statuses = sorted(each.result().status_code for each in asked)
    assert statuses == [200, 409, 409, 409]
    assert change(client, "load", path="first").status_code == 409  # it is served


@pytest.mark.parametrize(
    "path", ["..", "../outside", "/etc", "link", "circle", "second/../../outside", "."]
)
def test_only_bundles_in_the_folder_of_models_are_loaded(client, folder, tiny, path):
    outside = shutil.copytree(tiny, folder.parent / "outside")
    (folder / "link").symlink_to(outside)
    (folder / "circle").symlink_to(folder / "circle")
    refused = change(client, "load", "tiny", path=path)
    assert refused.status_code == 422
    if path != ".":
        assert refused.json()["errors"][0]["pointer"] == "/path"
    absolute = change(client, "load", "tiny", path=str(outside))
    assert absolute.json()["detail"].startswith("/path must be a folder in the folder HEED_MODELS")


@pytest.mark.parametrize("path", ["", "a" * 256, "a\0b", 5, None])
def test_a_path_that_no_folder_can_have_is_refused(client, path):
    answer = client.post("/v1/models/x/load", json={"path": path}, headers=KEY)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/path")


def test_without_a_folder_of_models_only_those_of_the_settings_are_loaded(folder):
    with opened(folder / "first", admin_key=ADMIN) as client:
        assert change(client, "load", "second", path=str(folder / "second")).status_code == 422
        assert change(client, "unload").status_code == 200
        assert change(client, "load", path=str(folder / "first")).status_code == 200


def test_a_folder_of_the_settings_is_loaded_by_the_path_that_they_give(folder, tiny, monkeypatch):
    """Even if it is relative; a folder of HEED_MODELS comes before it."""
    shutil.copytree(tiny, folder / "models" / "other")
    monkeypatch.chdir(folder)
    models = folder / "models"
    with opened(Path("first"), models=models, admin_key=ADMIN) as client:
        assert change(client, "unload").status_code == 200
        assert change(client, "load", path="first").status_code == 200
        assert change(client, "unload").status_code == 200
        shutil.copytree(folder / "second", models / "first")
        assert change(client, "load", "second", path="first").status_code == 200
        assert change(client, "load", path="second").status_code == 422


def test_a_bundle_of_another_name_is_refused(client):
    refused = change(client, "load", "third", path="second")
    assert refused.status_code == 422
    assert "named second" in refused.json()["detail"]
    assert names(client) == ["first"]


def test_without_an_admin_key_nobody_changes_models(folder):
    with opened(folder / "first", models=folder) as client:
        for operation, body in OPERATIONS.items():
            refused = change(client, operation, **body)
            assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
            assert f"/v1/models/{{name}}/{operation}" not in client.get("/openapi.json").text


def test_only_the_admin_key_changes_models(folder):
    with opened(folder / "first", models=folder, admin_key=ADMIN, api_keys=CLIENT) as client:
        document = client.get("/openapi.json").json()
        for operation, body in OPERATIONS.items():
            for headers in ({}, {"Authorization": f"Bearer {CLIENT}"}):
                refused = change(client, operation, headers=headers, **body)
                assert refused.status_code == 401
                assert ("admin key" if headers else "API key") in refused.json()["detail"]
            secured = document["paths"][f"/v1/models/{{name}}/{operation}"]["post"]["security"]
            assert secured == [{"admin_key": []}]
        assert document["components"]["securitySchemes"].keys() == {"admin_key", "api_key"}
        assert client.post("/v1/decode", json={"source": "red"}, headers=KEY).status_code == 200


def test_an_admin_key_that_clients_have_stops_the_start():
    with pytest.raises(StartupError, match="HEED_ADMIN_KEY") as refused:
        read_admin_key(Settings(admin_key=ADMIN), [ADMIN])
    assert ADMIN not in str(refused.value)


def test_a_bundle_that_does_not_open_stops_no_other(folder):
    """The service is not ready until the bundle is mended and reloaded, or given up."""
    manifest = folder / "second" / "bundle.json"
    good = manifest.read_text()
    manifest.write_text(json.dumps({**json.loads(good), "pad_id": 10**6}))
    with (
        capture_logs() as logged,
        opened(folder / "first", folder / "second", admin_key=ADMIN) as client,
    ):
        (line,) = (each for each in logged if each["event"] == "model not opened")
        (failed,) = client.get("/v1/models").json()["failed"]
        assert line["model"] == failed["name"] == "second"
        assert line["reason"] == failed["reason"]
        assert "1000000 is outside" in failed["reason"]
        assert decode(client).status_code == 200
        refused = client.post("/v1/decode", json={"source": "red", "model": "second"})
        assert (refused.status_code, refused.json()["code"]) == (404, "unknown_model")
        assert "model second could not be opened" in refused.json()["detail"]
        assert "model second could not be opened" in client.get("/v1/models/second").text
        ready = client.get("/readyz")
        assert (ready.status_code, "second" in ready.json()["detail"]) == (503, True)
        assert str(folder) not in ready.text, "probes need no key"
        paths = ("/readyz/first", "/readyz/second", "/readyz/third", "/livez")
        assert [client.get(path).status_code for path in paths] == [200, 503, 404, 200]
        assert change(client, "reload", "second").status_code == 422
        manifest.write_text(good)
        assert change(client, "reload", "second").status_code == 200
        assert client.get("/readyz").status_code == 200
        assert client.get("/v1/models").json()["failed"] == []


def test_a_folder_that_does_not_open_hides_no_model_of_its_name(folder):
    (folder / "second" / "bundle.json").unlink()
    unreadable = (folder / "second").rename(folder / "first-too") / "first"
    shutil.copytree(unreadable.parent, unreadable)
    with opened(folder / "first", unreadable) as client:
        assert [each["name"] for each in client.get("/v1/models").json()["failed"]] == ["first"]
        assert decode(client, model="first").status_code == 200
        assert client.get("/readyz/first").status_code == 200


def test_a_bundle_that_does_not_open_is_given_up(folder):
    (folder / "second" / "bundle.json").unlink()
    with opened(folder / "first", folder / "second", admin_key=ADMIN) as client:
        assert client.get("/readyz").status_code == 503
        assert change(client, "unload", "second").status_code == 200
        assert client.get("/readyz").status_code == 200
        assert change(client, "unload", "second").json()["code"] == "unknown_model"


def test_a_folder_that_holds_a_model_of_another_name_is_mended_by_loading_it(folder):
    """As long as its manifest cannot be read, it is known by the name of the folder."""
    manifest = folder / "second" / "bundle.json"
    good = json.loads(manifest.read_text())
    manifest.unlink()
    with opened(folder / "first", folder / "second", admin_key=ADMIN) as client:
        manifest.write_text(json.dumps({**good, "name": "third"}))
        assert "load it as third" in change(client, "reload", "second").json()["detail"]
        assert change(client, "load", "third", path=str(folder / "second")).status_code == 200
        assert client.get("/readyz").status_code == 200
        assert client.get("/v1/models").json()["failed"] == []


def test_a_service_without_any_model_does_not_start(tmp_path):
    with (
        pytest.raises(StartupError, match=r"one does not exist.*; .*two does not exist"),
        opened(tmp_path / "one", tmp_path / "two"),
    ):
        pass

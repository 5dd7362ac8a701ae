"""Errors of Ray's HTTP proxy reach clients as the service's own would."""

import re

import pytest
from fastapi.testclient import TestClient
from starlette.responses import PlainTextResponse, Response

from deploy.ray.proxy import ProxyErrors
from service.api.answering.responses import Problem
from service.http.messages.security import SECURITY_HEADERS


def ask(proxy, headers=None):
    return TestClient(ProxyErrors(proxy)).get("/v1/models", headers=headers)


@pytest.mark.parametrize(
    ("status", "answered", "code", "retry_after"),
    [
        (404, 404, "not_found", None),
        (408, 504, "deadline_exceeded", None),
        (429, 429, "overloaded", "1"),
        (500, 500, "internal", None),
        (503, 503, "unavailable", "5"),
    ],
)
def test_an_error_of_the_proxy_becomes_a_problem_document(status, answered, code, retry_after):
    answer = ask(PlainTextResponse("in the words of Ray", status), {"X-Request-Id": "mine"})
    problem = Problem.model_validate_json(answer.content)
    assert (answer.status_code, problem.status, problem.code) == (answered, answered, code)
    assert (problem.instance, problem.request_id) == ("/v1/models", "mine")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers.get("retry-after") == retry_after


@pytest.mark.parametrize("given", ["x" * 5000, "not safe to log"])
def test_a_request_id_that_a_replica_would_not_accept_is_replaced(given):
    answer = ask(PlainTextResponse("in the words of Ray", 404), {"X-Request-Id": given})
    problem = Problem.model_validate_json(answer.content)
    assert problem.request_id == answer.headers["x-request-id"]
    assert re.fullmatch("[0-9a-f]{32}", problem.request_id)


def test_no_answer_at_all_can_be_tried_again_soon():
    async def lose(scope, receive, send):
        """Ray's proxy sends nothing if the replica dies before it answers."""

    answer = ask(lose)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert Problem.model_validate_json(answer.content).code == "unavailable"


def test_answers_of_replicas_pass_with_one_request_id():
    """Those of protocols are not problem documents."""
    headers = {"X-Request-Id": "replica", "X-Other": "kept", **SECURITY_HEADERS}
    answer = Response(b"{}", 422, headers, "application/json")
    answer.raw_headers.append((b"X-Request-ID", b"proxy"))  # which the proxy adds
    found = ask(answer)
    assert (found.status_code, found.content) == (422, b"{}")
    assert found.headers.get_list("x-request-id") == ["replica"]
    assert found.headers["x-other"] == "kept"


def test_a_text_that_is_not_an_error_passes():
    assert ask(PlainTextResponse("success")).text == "success"

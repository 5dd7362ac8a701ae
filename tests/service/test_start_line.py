"""The line of the log that says what is served, how and where."""

import pytest
from structlog.testing import capture_logs

from service.__main__ import report_start
from service.http.server.server import address_of
from service.settings.settings import Settings


def test_the_line_agrees_with_what_the_service_says_of_its_models(client):
    with capture_logs() as logged:
        report_start(
            Settings(threads=1), client.app.state.service.registry.served, "http://localhost/"
        )
    (line,) = logged
    assert (line["event"], line["page"], line["threads"]) == ("serving", "http://localhost/", 1)
    for card in client.get("/v1/models").json()["models"]:
        shown = line["models"][card["name"]]
        assert shown.pop("workers") >= 1
        assert shown == {"precision": card["precision"], "provider": card["provider"]}
        assert line["instructions"] == card["instructions"]


@pytest.mark.parametrize(
    ("host", "prefix", "page"),
    [
        ("127.0.0.1", "", "http://127.0.0.1:80/"),
        ("0.0.0.0", "", "http://localhost:80/"),
        ("::", "/heed", "http://localhost:80/heed/"),
        ("::1", "", "http://[::1]:80/"),
        ("heed.internal", "/a/b", "http://heed.internal:80/a/b/"),
    ],
)
def test_the_address_of_the_page_is_one_that_a_browser_opens(host, prefix, page):
    assert address_of(Settings(host=host, root_path=prefix), 80) == page

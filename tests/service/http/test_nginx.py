"""What docs/operations.md gives nginx, in a real nginx before a real service."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urljoin

import httpx2
import pytest

from benchmarks.kit.serving import is_ready, reserved_port
from tests.service.http.sockets import connect
from tests.service.processes import running
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(not shutil.which("nginx"), reason="nginx is not installed")

PAGE = Path(__file__).parents[3] / "docs" / "operations.md"
UPSTREAM, LOCATION = re.findall(r"```nginx\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
STRIPPED = LOCATION.replace("http://heed;", "http://heed/;")
CONFIGURATION = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
    {upstream}
    server {{ listen 127.0.0.1:{kept}; {location} }}
    server {{ listen 127.0.0.1:{stripped}; {stripping} }}
}}
"""
PREFIX = ["--root-path", "/heed", "--trusted-proxies", "127.0.0.1"]


@pytest.fixture(scope="module")
def port():
    """The port of a service below /heed that does not wait long for first requests."""
    with running("-m", "service", *PREFIX, "--idle-timeout", "3") as (_, port):
        yield port


@pytest.fixture(scope="module")
def proxies(port, tmp_path_factory):
    """The address of the service behind nginx: with its prefix passed on, and stripped."""
    folder = tmp_path_factory.mktemp("nginx")
    with reserved_port() as kept, reserved_port() as stripped:
        (folder / "conf").write_text(
            CONFIGURATION.format(
                folder=folder,
                upstream=UPSTREAM.replace("127.0.0.1:8000", f"127.0.0.1:{port}"),
                location=LOCATION,
                stripping=STRIPPED,
                kept=kept,
                stripped=stripped,
            )
        )
        process = subprocess.Popen(["nginx", "-p", folder, "-e", "stderr", "-c", folder / "conf"])
        ports = {"kept": kept, "stripped": stripped}
        addresses = {name: f"http://127.0.0.1:{each}/heed" for name, each in ports.items()}
        wait_until(lambda: is_ready(addresses["stripped"]) or process.poll() is not None)
        assert process.poll() is None, "nginx did not start"
        yield addresses
        process.terminate()
        process.wait(60)


@pytest.fixture(params=["kept", "stripped"])
def proxy(proxies, request):
    return proxies[request.param]


def ask(address, body=None, **headers):
    """The status, the headers and the body of an answer."""
    method = "POST" if body else "GET"
    answer = httpx2.request(method, address, json=body, headers=headers, timeout=60)
    return answer.status_code, answer.headers, answer.content


def test_the_page_and_all_it_loads_come_through(proxy):
    for path in ("/", "/docs"):
        status, _, page = ask(f"{proxy}{path}")
        assert status == 200
        links = re.findall(r'(?:src|href)="(/?[\w./-]+\.(?:js|css|png|svg))"', page.decode())
        assert links
        for link in links:
            assert not link.startswith("/") or link.startswith("/heed/")
            assert ask(urljoin(f"{proxy}/", link))[0] == 200
    assert json.loads(ask(f"{proxy}/openapi.json")[2])["servers"] == [{"url": "/heed"}]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/livez", None, 200),
        ("/v1/models", None, 200),
        ("/v1/decode", {"source": "heed", "attention": {}}, 200),
        ("/v1/decode", {"source": ["heed"] * 256}, 200),
        ("/v1/decode", {"source": 5}, 422),
        ("/nowhere", {"source": "heed"}, 404),
    ],
)
def test_documents_and_problems_come_through(proxy, port, path, body, status):
    own = {"X-Request-Id": "mine"}
    direct, through = (
        ask(f"{each}{path}", body, **own) for each in (f"http://127.0.0.1:{port}/heed", proxy)
    )
    assert (through[0], through[2]) == (status, direct[2])
    assert through[1]["X-Request-Id"] == "mine"


@pytest.mark.parametrize("media_type", ["application/npz", "application/safetensors", "image/png"])
def test_arrays_and_pictures_come_through(proxy, port, media_type):
    body, wanted = {"source": "heed"}, {"Accept": media_type}
    direct = ask(f"http://127.0.0.1:{port}/v1/attention", body, **wanted)
    status, headers, content = ask(f"{proxy}/v1/attention", body, **wanted)
    assert (status, headers["Content-Type"]) == (200, media_type)
    assert content == direct[2]


def test_events_come_through_one_by_one(proxy):
    body = {"source": ["transformer"] * 64, "beam_size": 8, "stream": True}
    with httpx2.stream("POST", f"{proxy}/v1/decode", json=body, timeout=60) as answer:
        parts = answer.iter_raw()
        first = next(parts)
        assert first.startswith(b"event: beam\n")
        assert b"event: done" not in first
        assert b"event: done" in b"".join(parts)


def established(port):
    """How many connections to this port are open, as Linux counts them."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(f":{port:04X}" in line.split()[1] and line.split()[3] == "01" for line in lines)


def test_nginx_keeps_its_connections_for_longer_than_a_first_request_may_take(proxies, port):
    body = {"source": "heed"}
    assert ask(f"{proxies['kept']}/v1/decode", body)[0] == 200
    with connect(port) as new:
        assert new.recv(1) == b""  # it was closed after the time for a first request
    assert established(port) > 0
    answers = [ask(f"{proxies['kept']}/v1/decode", body)[0] for _ in range(50)]
    assert answers == [200] * 50

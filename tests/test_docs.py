"""Links, settings and commands in the documentation, and the site that `make docs` builds."""

import re
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import pytest

from service.settings.settings import Settings
from tests.documentation import commands

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
DOCKER = (DOCS / "docker.md").read_text(encoding="utf-8")
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
CODE = re.compile(r"^ *```.*?^ *```", re.M | re.S)
LOADING = {"script", "img", "iframe", "source", "video", "audio", "embed", "object"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page):
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    links = re.findall(r"\]\(((?!https?:)[^)#]+)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_index_lists_every_page():
    linked = re.findall(r"\]\(([\w-]+\.md)\)", (DOCS / "index.md").read_text(encoding="utf-8"))
    assert sorted([*linked, "index.md"]) == sorted(page.name for page in DOCS.glob("*.md"))


@pytest.mark.parametrize("name", sorted({page.name for page in DOCS.glob("*.md")} - {"index.md"}))
def test_a_page_begins_with_what_its_reader_can_do_after_it(name):
    beginning = (DOCS / name).read_text(encoding="utf-8").split("\n\n")[1]
    assert re.match(r"(After|With) (reading )?this page you (can|have|know) ", beginning)


def test_a_decision_says_whether_it_stands():
    replaced = r"(Accepted; .+ is s|S)uperseded by \[ADR \d+\]\(\S+\)"
    status = rf"\n\n\*\*Status\.\*\* (Accepted|{replaced})\.\n\n"
    pages = sorted((DOCS / "adr").glob("*.md"))
    assert [page.name for page in pages if not re.search(status, page.read_text())] == []


def test_variables_are_settings():
    text = "".join(
        page.read_text(encoding="utf-8") for page in PAGES if page.parent != DOCS / "adr"
    )
    named = set(re.findall(r"\bHEED_([A-Z_]+[A-Z])", text))
    of_clients = {"API_KEY"}
    assert named <= {name.upper() for name in Settings.model_fields} | of_clients


def test_the_architecture_lists_every_room_in_the_order_of_the_layers():
    """The import contract has every module of service/: `make check` fails without one."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = (each for each in contracts["contracts"] if each.get("containers") == ["service"])
    layers = [layer.split(" | ") for layer in contract["layers"]]
    _, table, _ = re.split(r"^## .*\n", (DOCS / "architecture.md").read_text(), flags=re.M)[:3]
    rows = [row.split("|") for row in table.splitlines() if row.startswith("| `")]
    listed = [room for row in rows for room in re.findall(r"`(\w+)`", row[1])]
    for layer in layers:
        here, listed = listed[: len(layer)], listed[len(layer) :]
        assert sorted(here) == sorted(layer)
    assert listed == []
    above = set[str]()
    for row in rows:
        above |= set(re.findall(r"`(\w+)`", row[1]))
        assert above.isdisjoint(re.findall(r"`(\w+)`", row[3])), "a room imports those below it"


def test_the_quick_start_trains_as_the_tutorial_does():
    """tests/test_tutorial.py runs the tutorial's commands."""
    quick, tutorial = (
        {command for command, _ in commands(text) if command.startswith(".venv/bin/python ")}
        for text in ((DOCS / name).read_text() for name in ("quick-start.md", "tutorial.md"))
    )
    assert len(quick) == 3
    assert quick <= tutorial


def test_the_page_on_docker_is_right_about_the_image():
    arguments = set(re.findall(r"^ARG (\w+)=", DOCKERFILE, re.M))
    assert set(re.findall(r"--build-arg (\w+)=", DOCKER)) == arguments
    runtimes = set(re.findall(r'"\$RUNTIME" = (\w+)', DOCKERFILE))
    assert set(re.findall(r"RUNTIME=(\w+)", DOCKER)) == runtimes
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for named in re.findall(r"EXTRAS=([\w,]+)", DOCKER):
        assert set(named.split(",")) <= extras.keys()
    (user,) = re.findall(r"^USER (\d+)$", DOCKERFILE, re.M)
    assert set(re.findall(r"[Uu]ser (\d+)", DOCKER)) == {user}
    (check,) = re.findall(r"^HEALTHCHECK (.*?) \\\n", DOCKERFILE, re.M)
    interval, timeout, start = re.findall(r"=(\d+)s", check)
    for shown in (f"every {interval} s", f"within {timeout} s", f"the first {start} s"):
        assert shown in DOCKER
    for variable in re.findall(r"HEED_\w+=[\d.]+", DOCKERFILE):
        assert variable in DOCKER


class Loads(HTMLParser):
    """The addresses that a browser loads for a page, other than those of links to follow."""

    def __init__(self, text):
        super().__init__()
        self.addresses = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag in LOADING:
            self.addresses += [given.get("src"), given.get("data")]
        elif tag == "link":
            self.addresses.append(given["href"])


def test_the_site_builds_and_asks_no_other_host(tmp_path):
    """mkdocs.yml is strict: a broken link or a page that the menu lacks fails."""
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    pages = [*tmp_path.rglob("*.html")]
    assert len(pages) > len(PAGES) - 2
    for page in pages:
        text = page.read_text(encoding="utf-8")
        outside = [each for each in Loads(text).addresses if re.match(r"(\w+:)?//", each or "")]
        assert outside == [], page
        assert 'class="mermaid"' not in text, f"{page}: diagrams load Mermaid from another host"
    for sheet in tmp_path.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\W*(https?:)?//", sheet.read_text(encoding="utf-8"))

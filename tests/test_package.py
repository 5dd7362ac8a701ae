"""The wheel, built from the sdist, has all that the command and the service need."""

import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import httpx2
import pytest

from benchmarks.kit.serving import is_ready, reserved_port
from tests.waiting import wait_until

ROOT = Path(__file__).parent.parent
PARTS = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "model", "service")
BUILD = "from setuptools.build_meta import build_{0}; build_{0}({1!r})"


def build(what, source, folder):
    """Build an sdist or a wheel, and return its file."""
    command = [sys.executable, "-c", BUILD.format(what, str(folder))]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (file,) = folder.iterdir()
    return file


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("package")
    (folder / "repository").mkdir()
    for name in PARTS:
        part = ROOT / name
        copy = shutil.copytree if part.is_dir() else shutil.copy
        copy(part, folder / "repository" / name)
    with tarfile.open(build("sdist", folder / "repository", folder / "sdist")) as sdist:
        sdist.extractall(folder, filter="data")
    (source,) = folder.glob("heed_server-*")
    assert not (source / "tests").exists()
    return build("wheel", source, folder / "wheel")


@pytest.fixture(scope="module")
def scripts(wheel, tmp_path_factory):
    """The scripts of an environment with the wheel, and the packages of this one but not the
    repository."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    python = folder / "bin" / "python"
    install = ["--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True)
    (packages,) = folder.glob("lib/*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    return python.parent


def test_the_wheel_has_every_file_of_both_packages(wheel):
    listed = subprocess.run(
        ["git", "ls-files", "service", "model"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    assert {*listed.stdout.split()} <= {*zipfile.ZipFile(wheel).namelist()}


def test_the_command_serves_from_a_folder_with_modules_of_the_same_names(scripts, tmp_path):
    for name in ("model.py", "service.py"):
        (tmp_path / name).write_text("raise SystemExit('a file of the user has run')")
    with (
        reserved_port() as port,
        subprocess.Popen(
            [scripts / "heed", "serve", "--port", str(port)],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
        httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        address = str(client.base_url)
        wait_until(lambda: is_ready(address) or process.poll() is not None)
        answer = client.post("/v1/decode", json={"source": "knight"}).json()
        pages = [client.get(path).status_code for path in ("/", "/docs", "/web/page/app.js")]
        process.terminate()
        log = process.stdout.read()
    assert answer["results"][0]["hypotheses"][0]["text"] == "N AY1 T"
    assert pages == [200, 200, 200]
    assert str(scripts.parent / "lib") in log, "the model's folder"

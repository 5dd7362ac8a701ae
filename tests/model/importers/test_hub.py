"""Downloads, with a stand-in of the Hugging Face hub."""

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

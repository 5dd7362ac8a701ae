"""A request enters the file of a feature only if it asks for the feature."""

import asyncio
import sys
import threading
from pathlib import Path

import pytest

import service
from service.command.local import LocalModel, local_service
from service.settings.settings import Settings

ROOT = Path(service.__file__).parent
FEATURES = {
    "api/answering/aligned.py",
    "api/answering/simultaneous.py",
    "api/answering/stream.py",
    "api/answering/words.py",
    "api/endpoints/decode/drafts.py",
    "api/reading/languages.py",
    "api/reading/required.py",
    "api/reading/selection.py",
    "engine/gates.py",
    "search/banks.py",
    "search/drafts.py",
    "text/glossary.py",
    "text/markup/document.py",
    "text/sentences.py",
}
DRAFT = {"api/endpoints/decode/drafts.py", "search/drafts.py"}
ALIGNS = {"api/reading/selection.py"}  # they ask whether the model can
MARKUP = {"api/answering/aligned.py", "text/markup/document.py", "text/sentences.py"}
ASKED = {
    "nothing": ({}, set()),
    "beams": ({"beam_size": 4, "num_hypotheses": 2}, set()),
    "attention": ({"attention": {}}, {"api/reading/selection.py"}),
    "ablate": (
        {"ablate": [{"kind": "cross", "layer": 0, "heads": [0]}]},
        {"api/reading/selection.py", "engine/gates.py"},
    ),
    "draft": ({"draft": "HH IY1 D"}, DRAFT),
    "required": ({"required": ["D"]}, {"api/reading/required.py", "search/banks.py"}),
    "glossary": ({"glossary": {"a": "D"}}, {"api/reading/required.py", "text/glossary.py"}),
    "words": ({"words": True}, {"api/answering/words.py"} | ALIGNS),
    "growing": ({"source_final": False}, {"api/answering/simultaneous.py"} | ALIGNS),
    "split": ({"split": "sentences"}, {"text/sentences.py"}),
    "markup": ({"markup": "xml"}, MARKUP | ALIGNS),
    "unknown": ({"replace_unknown": True}, {"api/answering/aligned.py"} | ALIGNS),
}


@pytest.fixture(scope="module")
def enter():
    """Return a function that decodes a word, and returns the files that the API and the engine
    have entered meanwhile."""
    entered = set()

    def note(frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT):
            entered.add(str(path.relative_to(ROOT)))

    threading.setprofile(note)  # of the engine
    runner = asyncio.Runner()
    opening = local_service(Settings())
    model = LocalModel(runner.run(opening.__aenter__()))

    def decode(body):
        entered.clear()
        sys.setprofile(note)
        try:
            runner.run(model.ask("/v1/decode", {"source": "heed", **body}))
        finally:
            sys.setprofile(None)
        return {*entered}

    yield decode
    threading.setprofile(None)
    runner.run(opening.__aexit__(None, None, None))
    runner.close()


@pytest.mark.parametrize("asked", ASKED)
def test_a_request_enters_the_files_of_what_it_asks_for(enter, asked):
    body, features = ASKED[asked]
    entered = enter(body)
    assert entered >= {"api/reading/search.py", "engine/worker.py"}
    assert entered & FEATURES == features

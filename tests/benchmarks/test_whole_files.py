"""The systems that the benchmark of whole files compares."""

import asyncio

from benchmarks.documents import by_command, by_engine
from benchmarks.speed.agreement import read_sources
from service.bundle.manifest import load_bundle
from service.command.local import LocalModel, local_service
from service.settings.settings import DEFAULT_BUNDLE, Settings
from service.text.opening import open_tokenizers

WORDS = ["transformers", "attention", "service", "knight", "heed", "a"]  # longest first


def test_the_command_writes_what_the_engine_alone_decodes(tmp_path):
    """No command of click is running, in whose context errors would name lines."""
    bundle = load_bundle(DEFAULT_BUNDLE)
    settings = Settings(bundles=[bundle.root], self_check=False)

    async def decode():
        async with local_service(settings) as service:
            (model,) = service.registry.served.values()
            ids = await by_engine(model.engine.local, read_sources(bundle, WORDS, {}), 64)(1)
            return ids, await by_command(LocalModel(service), WORDS, {}, tmp_path)(1)

    ids, written = asyncio.run(decode())
    _, tokenizer = open_tokenizers(bundle)
    assert written == [tokenizer.decode(each).text for each in ids]

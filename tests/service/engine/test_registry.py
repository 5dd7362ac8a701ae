"""An engine stays as long as requests use its model."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from service.errors import Unavailable
from service.serving.registry import Registry
from service.serving.supervisor import Supervisor
from service.settings.settings import Provider, Settings
from tests.conftest import TINY
from tests.service.engine.clients import entries


@asynccontextmanager
async def registry_of(*folders, on_change=lambda: None, **changes):
    settings = Settings(bundles=[*folders], provider=Provider.cpu, **changes)
    registry = Registry(settings, Supervisor, on_change)
    try:
        await registry.open()
        yield registry
    finally:
        await registry.close()


@pytest.mark.parametrize("operation", ["reload", "unload"])
def test_a_request_that_has_found_its_model_still_gets_an_answer(operation):
    """Its texts may be tokenized while another engine takes over, before it submits anything."""

    async def run():
        changed = asyncio.Event()
        async with registry_of(TINY, on_change=changed.set) as registry:
            changed.clear()
            model = registry.served["tiny"]
            model.use()
            changing = asyncio.create_task(getattr(registry, operation)("tiny"))
            await changed.wait()
            assert registry.served.get("tiny") is not model
            answers = await asyncio.gather(*model.engine.submit(entries(4)))
            assert not changing.done()
            model.release()
            await changing
            with pytest.raises(Unavailable):
                model.engine.submit(entries(1))
        return answers

    assert len(asyncio.run(run())) == 4


def test_a_model_that_is_always_used_is_closed_after_the_timeout():
    async def run():
        async with registry_of(TINY, timeout=0.2) as registry:
            model = registry.served["tiny"]
            model.use()
            async with asyncio.timeout(60):
                await registry.unload("tiny")
            assert not registry.served
            with pytest.raises(Unavailable):
                await model.engine.status()

    asyncio.run(run())


def test_folders_of_one_name_that_do_not_open_are_both_told(tmp_path):
    folders = [tmp_path / "first" / "model", tmp_path / "second" / "model"]

    async def run():
        async with registry_of(*folders, TINY) as registry:
            return [failure.folder for failure in registry.failed.values()]

    assert asyncio.run(run()) == folders

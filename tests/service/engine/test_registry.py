"""An engine stays as long as requests use its model."""

import asyncio

import pytest

from service.errors import Unavailable
from service.serving.registry import Registry
from service.serving.supervisor import Supervisor
from service.settings.settings import Provider, Settings
from tests.conftest import TINY
from tests.service.engine.clients import entries


@pytest.mark.parametrize("operation", ["reload", "unload"])
def test_a_request_that_has_found_its_model_still_gets_an_answer(operation):
    """Its texts may be tokenized while another engine takes over, before it submits anything."""

    async def run():
        settings = Settings(bundles=[TINY], provider=Provider.cpu)
        changed = asyncio.Event()
        registry = Registry(settings, Supervisor, on_change=changed.set)
        try:
            await registry.open()
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
        finally:
            await registry.close()
        return answers

    assert len(asyncio.run(run())) == 4


def test_a_model_that_is_always_used_is_closed_after_the_timeout():
    async def run():
        settings = Settings(bundles=[TINY], provider=Provider.cpu, timeout=0.2)
        registry = Registry(settings, Supervisor, on_change=lambda: None)
        try:
            await registry.open()
            model = registry.served["tiny"]
            model.use()
            async with asyncio.timeout(30):
                await registry.unload("tiny")
            assert not registry.served
            with pytest.raises(Unavailable):
                await model.engine.status()
        finally:
            await registry.close()

    asyncio.run(run())


def test_folders_of_one_name_that_do_not_open_are_both_told(tmp_path):
    folders = [tmp_path / "first" / "model", tmp_path / "second" / "model"]

    async def run():
        settings = Settings(bundles=[*folders, TINY], provider=Provider.cpu)
        registry = Registry(settings, Supervisor, on_change=lambda: None)
        try:
            await registry.open()
        finally:
            await registry.close()
        return [failure.folder for failure in registry.failed.values()]

    assert asyncio.run(run()) == folders

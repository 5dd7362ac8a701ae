"""The systems that are compared. Each runs in a process of its own and answers calls."""

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # importing the network imports torch, whose memory would count for every system
    from model.network.config import TransformerConfig

Ids = list[list[int]]
Timed = tuple[float, Ids]  # seconds, and the ids that were generated


@dataclass(frozen=True, slots=True)
class Call:
    """A batch of sources. With `attention`, all decoder and cross-attention is returned, too."""

    sources: Ids
    beam_size: int
    new_tokens: int
    attention: bool = False


Decode = Callable[[Call], Timed]


@dataclass(frozen=True, slots=True)
class System:
    """`open` runs in the system's process and gets the folder of the models (`write_models`)."""

    name: str
    open: Callable[[Path], Decode]


def heed(folder: Path, precision: str, *, attention: bool = True) -> Decode:
    import numpy as np

    from service.attention import NO_ATTENTION, Selection
    from service.bundle import load_bundle
    from service.engine.engine import Engine
    from service.engine.messages import Entry
    from service.search.options import SearchOptions
    from service.settings import Precision, Provider, Settings

    settings = Settings(
        provider=Provider.cpu,
        precision=Precision(precision),
        attention=attention,
        self_check=False,
    )
    bundle = load_bundle(folder / "heed")
    engine = Engine(bundle, settings)
    config = bundle.manifest.config
    layers = [*range(config.num_decoder_layers)]
    everything = Selection({"decoder": layers, "cross": layers}, [*range(config.num_heads)])
    engine.start()

    def run(call: Call) -> Timed:
        options = SearchOptions(max_new_tokens=call.new_tokens, beam_size=call.beam_size)
        sources = [np.array(ids) for ids in call.sources]
        started = time.perf_counter()
        shown = everything if call.attention else NO_ATTENTION
        entries = [Entry(source_ids=ids, search=options, selection=shown) for ids in sources]
        engine.queue.put(entries)
        answers = [entry.result.result() for entry in entries]
        seconds = time.perf_counter() - started
        return seconds, [answer.hypotheses[0].token_ids for answer in answers]

    return run


def ctranslate2(folder: Path, compute_type: str, inter_threads: int, intra_threads: int) -> Decode:
    import ctranslate2

    translator = ctranslate2.Translator(
        str(folder / "ctranslate2"),
        compute_type=compute_type,
        inter_threads=inter_threads,
        intra_threads=intra_threads,
    )

    def run(call: Call) -> Timed:
        sources = [[str(token) for token in ids] for ids in call.sources]
        started = time.perf_counter()
        results = translator.translate_batch(
            sources,
            beam_size=call.beam_size,
            max_decoding_length=call.new_tokens,
            max_batch_size=-(-len(call.sources) // inter_threads),
        )
        seconds = time.perf_counter() - started
        return seconds, [[int(token) for token in result.hypotheses[0]] for result in results]

    return run


def no_cache(_: Path, config: "TransformerConfig") -> Decode:
    """Prepare the simple loop of tutorials: the whole decoder runs again for every token."""
    import torch

    from benchmarks.models import random_model

    model = random_model(config)

    @torch.inference_mode()
    def run(call: Call) -> Timed:
        started = time.perf_counter()
        source_ids = torch.tensor(call.sources)
        source_length = torch.full((len(source_ids),), source_ids.size(1))
        memory, _ = model.encoder(source_ids, source_length)
        cross = model.decoder.cross(memory)
        ids = torch.full((len(source_ids), 1), model.config.bos_id)
        for _ in range(call.new_tokens):
            length = torch.full((len(ids),), ids.size(1))
            hidden = model.decoder(ids, length, cross, source_length).hidden[:, -1]
            ids = torch.cat([ids, model.generator(hidden).argmax(-1, keepdim=True)], 1)
        return time.perf_counter() - started, ids[:, 1:].tolist()

    return run


def hugging_face(_: Path, config: "TransformerConfig") -> Decode:
    """Prepare transformers' own `generate` at float32, with torch's fused attention."""
    import torch

    from benchmarks.hugging_face import to_hugging_face
    from benchmarks.models import random_model

    model = to_hugging_face(random_model(config))

    def run(call: Call) -> Timed:
        started = time.perf_counter()
        source_ids = torch.tensor(call.sources)
        # `generate` expects a protocol that its own models do not declare.
        ids = model.generate(  # pyright: ignore[reportAttributeAccessIssue]
            input_ids=source_ids,
            attention_mask=torch.ones_like(source_ids),
            max_new_tokens=call.new_tokens,
            num_beams=call.beam_size,
            do_sample=False,
        )
        return time.perf_counter() - started, ids[:, 1:].tolist()

    return run


def heed_system(precision: str) -> System:
    return System(f"heed {precision}", partial(heed, precision=precision))


def ctranslate2_systems(compute_type: str, cores: int) -> list[System]:
    """Return a system for each setting worth trying, workers x threads.

    CTranslate2 splits a batch among its workers.
    """
    return [
        System(
            f"ctranslate2 {compute_type} {workers} x {threads}",
            partial(
                ctranslate2,
                compute_type=compute_type,
                inter_threads=workers,
                intra_threads=threads,
            ),
        )
        for workers, threads in sorted({(1, 1), (1, cores), (cores, 1)})
    ]


class Running:
    """A system in a child process, which sleeps between its calls."""

    def __init__(self, system: System, folder: Path) -> None:
        """Return when the system is open."""
        self.name = system.name
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=answer, args=(theirs, system, folder), daemon=True)
        self._process.start()
        theirs.close()  # or recv() would wait for a dead child: our copy keeps the pipe open
        self._pipe.recv()

    def __call__(self, call: Call) -> Timed:
        self._pipe.send(call)
        return self._pipe.recv()

    def close(self) -> float:
        """End the process and return its peak memory in MiB."""
        self._pipe.send(None)
        peak: float = self._pipe.recv()
        self._process.join()
        return peak


def answer(pipe: "Connection[Any, Any]", system: System, folder: Path) -> None:
    """Answer each call until None arrives, then send the peak memory in MiB."""
    run = system.open(folder)
    pipe.send(os.getpid())
    while (call := pipe.recv()) is not None:
        pipe.send(run(call))
    status = Path("/proc/self/status").read_text()
    pipe.send(int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 1024)

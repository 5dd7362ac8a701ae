"""The systems that are compared, each in a process of its own: (batch of ids) -> ids and scores."""

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

Ids = list[list[int]]
Timed = tuple[float, Ids]  # seconds, and what was generated


@dataclass(frozen=True, slots=True)
class Call:
    """One request: a batch of sources, how many beams, how many tokens to generate, and whether to
    show all decoder and cross-attention."""

    sources: Ids
    beam_size: int
    new_tokens: int
    attention: bool = False


@dataclass(frozen=True, slots=True)
class System:
    """`open` runs in the child: (folder of the models, *options) -> a function that answers."""

    name: str
    open: Callable[..., Callable[[Call], Timed]]
    options: tuple[Any, ...]


def heed(folder: Path, precision: str, *, attention: bool = True) -> Callable[[Call], Timed]:
    import numpy as np

    from service.attention import NO_ATTENTION, select
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
    everything = select(["decoder", "cross"], "all", "all", bundle.manifest.config)
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


def heed_without_attention(folder: Path, precision: str) -> Callable[[Call], Timed]:
    return heed(folder, precision, attention=False)


def ctranslate2(
    folder: Path, compute_type: str, inter_threads: int, intra_threads: int
) -> Callable[[Call], Timed]:
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


def no_cache(folder: Path, size: str) -> Callable[[Call], Timed]:
    """The loop that tutorials show: the whole decoder again for every token."""
    import torch

    from benchmarks.models import CONFIGS, random_model

    del folder
    model = random_model(CONFIGS[size])

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


def hugging_face(folder: Path, size: str) -> Callable[[Call], Timed]:
    """Its own `generate`, float32, attention by torch's fused operator."""
    import torch

    from benchmarks.hugging_face import to_hugging_face
    from benchmarks.models import CONFIGS, random_model

    del folder
    model = to_hugging_face(random_model(CONFIGS[size]))

    def run(call: Call) -> Timed:
        started = time.perf_counter()
        source_ids = torch.tensor(call.sources)
        ids = model.generate(
            input_ids=source_ids,
            attention_mask=torch.ones_like(source_ids),
            max_new_tokens=call.new_tokens,
            num_beams=call.beam_size,
            do_sample=False,
        )
        return time.perf_counter() - started, ids[:, 1:].tolist()

    return run


def serve(pipe: Any, system: System, folder: Path) -> None:
    run = system.open(folder, *system.options)
    pipe.send(os.getpid())
    while (call := pipe.recv()) is not None:
        pipe.send(run(call))
    status = Path("/proc/self/status").read_text()
    pipe.send(int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 1024)


class Running:
    """A system in a child process that waits, asleep, between its calls."""

    def __init__(self, system: System, folder: Path) -> None:
        self.name = system.name
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, system, folder), daemon=True)
        self._process.start()
        self._pipe.recv()

    def __call__(self, call: Call) -> Timed:
        self._pipe.send(call)
        return self._pipe.recv()

    def close(self) -> float:
        """-> its peak memory, MiB"""
        self._pipe.send(None)
        peak: float = self._pipe.recv()
        self._process.join()
        return peak


def ctranslate2_settings(compute_type: str, cores: int) -> Sequence[System]:
    """Workers x threads, of which its best is to be taken; a batch is split among the workers."""
    pairs = sorted({(1, 1), (1, cores), (cores, 1)})
    names = [f"ctranslate2 {compute_type} {inter} x {intra}" for inter, intra in pairs]
    options = [(compute_type, *pair) for pair in pairs]
    return [System(name, ctranslate2, each) for name, each in zip(names, options, strict=True)]

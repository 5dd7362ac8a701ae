"""The systems that are compared. Each runs in a process of its own and answers calls."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from benchmarks.kit.process import Call, Decode, Ids, Stopwatch, System, Timed

if TYPE_CHECKING:  # importing the network imports torch, whose memory would count for every system
    from model.network.config import TransformerConfig


def heed(folder: Path, precision: str, *, attention: bool = True, provider: str = "cpu") -> Decode:
    sys.modules["rich"] = cast("Any", None)  # structlog would load it; the service lacks it
    import numpy as np

    from service.attention import NO_ATTENTION, Selection
    from service.bundle.manifest import load_bundle
    from service.engine.engine import Engine
    from service.engine.scheduler import Job
    from service.search.options import SearchOptions
    from service.settings.settings import Precision, Provider, Settings
    from service.wire import Entry

    settings = Settings(
        provider=Provider(provider),
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
        chosen: dict[str, Any] = {"beam_size": call.beam_size, **call.options}
        options = SearchOptions(max_new_tokens=call.new_tokens, **chosen)
        sources = [np.array(ids) for ids in call.sources]
        shown = everything if call.attention else NO_ATTENTION
        with Stopwatch() as watch:
            jobs = [Job(Entry(ids, options, selection=shown)) for ids in sources]
            engine.queue.put(jobs)
            answers = [job.result.result() for job in jobs]
        return watch.timed([answer.hypotheses[0].token_ids for answer in answers])

    return run


def bare_loop(folder: Path, precision: str) -> Decode:
    """Prepare Heed's graphs in a loop without engine or search: the first candidate is read next.

    With beams the loop runs as many rows, and asks for as many candidates, as a beam search.
    """
    import numpy as np

    from service.bundle.manifest import load_bundle
    from service.runtime.session import Session
    from service.settings.settings import Precision, Provider, Settings

    settings = Settings(provider=Provider.cpu, precision=Precision(precision), self_check=False)
    bundle = load_bundle(folder / "heed")
    session, start = Session(bundle, settings), bundle.manifest.start_ids(())[0]

    def run(call: Call) -> Timed:
        sources, rows = [np.array(ids) for ids in call.sources], len(call.sources) * call.beam_size
        candidates = 1 if call.beam_size == 1 else call.beam_size + 1
        generated: Ids = []
        with Stopwatch() as watch:
            _, cross = session.encode(sources)
            cache = session.new_cache(call.beam_size)
            cache.insert(cross)
            tokens = np.full(rows, start)
            for _ in range(call.new_tokens):
                tokens = session.step(cache, tokens, candidates).ids[:, 0]
                generated.append(tokens.tolist())
        return watch.timed([[*row] for row in zip(*generated, strict=True)][:: call.beam_size])

    return run


def ctranslate2(
    folder: Path,
    compute_type: str,
    inter_threads: int,
    intra_threads: int,
    device: str = "cpu",
) -> Decode:
    import ctranslate2

    translator = ctranslate2.Translator(
        str(folder / "ctranslate2"),
        device=device,
        compute_type=compute_type,
        inter_threads=inter_threads,
        intra_threads=intra_threads,
    )

    def run(call: Call) -> Timed:
        sources = [[str(token) for token in ids] for ids in call.sources]
        with Stopwatch() as watch:
            results = translator.translate_batch(
                sources,
                beam_size=call.beam_size,
                max_decoding_length=call.new_tokens,
                max_batch_size=-(-len(call.sources) // inter_threads),
            )
        return watch.timed([[int(token) for token in each.hypotheses[0]] for each in results])

    return run


def no_cache(_: Path, config: "TransformerConfig") -> Decode:
    """Prepare the simple loop of tutorials: the whole decoder runs again for every token."""
    import torch

    from benchmarks.kit.models import random_model

    model = random_model(config)

    @torch.inference_mode()
    def run(call: Call) -> Timed:
        with Stopwatch() as watch:
            source_ids = torch.tensor(call.sources)
            source_length = torch.full((len(source_ids),), source_ids.size(1))
            memory, _ = model.encoder(source_ids, source_length)
            cross = model.decoder.cross(memory)
            ids = torch.full((len(source_ids), 1), model.config.bos_id)
            for _ in range(call.new_tokens):
                length = torch.full((len(ids),), ids.size(1))
                hidden = model.decoder(ids, length, cross, source_length).hidden[:, -1]
                ids = torch.cat([ids, model.generator(hidden).argmax(-1, keepdim=True)], 1)
        return watch.timed(ids[:, 1:].tolist())

    return run


def hugging_face(_: Path, config: "TransformerConfig", device: str = "cpu") -> Decode:
    """Prepare transformers' own `generate` with torch's fused attention, at float32 or, on a GPU,
    at float16."""
    import torch

    from benchmarks.kit.hugging_face import generate_calls, to_hugging_face
    from benchmarks.kit.models import random_model

    model: Any = to_hugging_face(random_model(config))
    dtype = torch.float32 if device == "cpu" else torch.float16
    return generate_calls(model.to(device, dtype))


def heed_system(precision: str) -> System:
    return System(f"heed {precision}", partial(heed, precision=precision))


def bare_system(precision: str) -> System:
    return System(f"bare {precision}", partial(bare_loop, precision=precision))


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

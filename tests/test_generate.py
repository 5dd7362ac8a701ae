"""Compare searches under bans, penalties and several ends with `generate` of Hugging Face.

Both read the same tiny random models, each by its own forward pass.
"""

import numpy as np
import pytest
import torch

from benchmarks.kit.hugging_face import to_hugging_face
from service.search.beam import BeamSearch
from service.search.greedy import GreedySearch
from service.search.options import SearchOptions
from service.search.protocol import Candidates
from tests.test_peers import EOS, VOCABULARY, random_transformer

ENDS = [EOS, 7, 11]
LONGEST = 7


def draw(random, beam_size):
    """Return random options and ends."""
    words = [random.integers(3, VOCABULARY, random.integers(2, 4)).tolist() for _ in range(40)]
    return (
        SearchOptions(
            max_new_tokens=LONGEST,
            min_new_tokens=int(random.choice([0, 4])),
            beam_size=beam_size,
            num_hypotheses=beam_size,
            length_penalty=float(random.choice([0.5, 1.0, 2.0])),
            early_stopping=bool(random.integers(2)),
            no_repeat_ngram_size=1,  # these models would say one token again and again
            repetition_penalty=float(random.choice([1.0, 1.3])),
            suppress_sequences=tuple(map(tuple, words[: random.choice([0, 40])])),
            encoder_repetition_penalty=float(random.choice([0.8, 1.0, 1.4])),
            encoder_no_repeat_ngram_size=int(random.integers(0, 4)),
        ),
        (ENDS if random.integers(2) else [EOS]),
    )


@torch.no_grad()
def hypotheses_of(model, source, options, ends):
    rows = options.beam_size
    search = (BeamSearch if rows > 1 else GreedySearch)(rows, ends, str)
    search.insert([options], [[model.config.bos_id]], [np.array(source)])
    lengths, target = torch.full((rows,), len(source)), torch.full((rows, 1), model.config.bos_id)
    memory, _ = model.encoder(torch.tensor([source]).expand(rows, -1), lengths)
    cross = model.decoder.cross(memory)
    while True:
        read = torch.full((rows,), target.size(1))
        decoded = model.decoder(target, read, cross, lengths)
        logits = model.generator(decoded.hidden[:, -1])  # (W, V)
        best = logits.log_softmax(-1).topk(min(search.needed.k, VOCABULARY))
        step = search.advance(Candidates(*(each.numpy() for each in best), logits.numpy()))
        if step.ended:
            return search.hypotheses(0)
        parents = range(rows) if step.parents is None else step.parents.tolist()
        target = torch.column_stack([target[[*parents]], torch.from_numpy(step.tokens)])


def generate(model, source, options, ends):
    """Return the ids of each hypothesis and, of a beam search, their scores."""
    beams = {"length_penalty": options.length_penalty, "early_stopping": options.early_stopping}
    found = to_hugging_face(model).generate(
        input_ids=torch.tensor([source]),
        attention_mask=torch.ones(1, len(source), dtype=torch.long),
        eos_token_id=ends,
        do_sample=False,
        max_new_tokens=options.max_new_tokens,
        min_new_tokens=options.min_new_tokens,
        num_beams=options.beam_size,
        num_return_sequences=options.num_hypotheses,
        no_repeat_ngram_size=options.no_repeat_ngram_size,
        repetition_penalty=options.repetition_penalty,
        bad_words_ids=[*map(list, options.suppress_sequences)] or None,
        encoder_repetition_penalty=options.encoder_repetition_penalty,
        encoder_no_repeat_ngram_size=options.encoder_no_repeat_ngram_size,
        return_dict_in_generate=True,
        output_scores=True,
        **(beams if options.beam_size > 1 else {}),
    )
    rows = found.sequences[:, 1:].tolist()
    places = [[i + 1 for i, each in enumerate(row) if each in ends] for row in rows]
    ids = [row[: min(ended, default=None)] for row, ended in zip(rows, places, strict=True)]
    return ids, None if options.beam_size == 1 else found.sequences_scores.tolist()


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize(
    "seeds", [range(4), pytest.param(range(4, 100), marks=pytest.mark.long)], ids=["few", "many"]
)
def test_bans_penalties_and_several_ends_are_those_of_generate(seeds, beam_size):
    found = []
    for seed in seeds:
        random = np.random.default_rng(seed)
        options, ends = draw(random, beam_size)
        source = random.integers(3, VOCABULARY, 6).tolist()
        model = random_transformer(seed)
        ours = hypotheses_of(model, source, options, ends)
        ids, scores = generate(model, source, options, ends)
        assert [each.token_ids for each in ours] == ids
        if scores:
            assert [each.score for each in ours] == pytest.approx(scores, abs=1e-4)
        plain = SearchOptions(
            max_new_tokens=LONGEST,
            min_new_tokens=options.min_new_tokens,
            beam_size=beam_size,
            num_hypotheses=beam_size,
            no_repeat_ngram_size=1,
        )
        found.append((ids, [h.token_ids for h in hypotheses_of(model, source, plain, [EOS])]))
    assert sum(ids != plain for ids, plain in found) > len(found) / 4  # the options act
    assert {*ENDS[1:]} & {row[-1] for ids, _ in found for row in ids}

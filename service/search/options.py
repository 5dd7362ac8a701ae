"""The options of one request's search."""

from typing import NamedTuple

from service.search.phrases import Requirement

ABSENT = -1  # stands in a draft for a token that targets lack


class SearchOptions(NamedTuple):
    """Options of the search for the targets of one source.

    A beam size of 1 is greedy search, or sampling where the temperature is above 0. Hypotheses
    rank by score = log_prob / length ** length_penalty, where log_prob is the sum over all tokens,
    eos included. The length counts these tokens and the start ids after the first, as Hugging Face
    counts a forced BOS. This is the formula of Hugging Face and CTranslate2, not GNMT's
    ((5 + n) / 6) ** alpha. A tuple, since every entry is pickled with one.
    """

    max_new_tokens: int  # counts eos, but neither start ids nor the target prefix
    min_new_tokens: int = 0  # no eos before that
    beam_size: int = 1
    num_hypotheses: int = 1  # to return: at most beam_size, or any number of samples
    length_penalty: float = 1.0  # 0: rank by log_prob; larger values favour longer targets
    early_stopping: bool = True  # stop at beam_size hypotheses, even if a beam could beat them
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0  # 0: any n-gram may repeat
    suppress_tokens: tuple[int, ...] = ()
    suppress_sequences: tuple[tuple[int, ...], ...] = ()  # of several tokens: none is completed
    encoder_repetition_penalty: float = 1.0  # above 1: favour tokens of the source
    encoder_no_repeat_ngram_size: int = 0  # 0: any n-gram of the source may come
    renormalize: bool = False  # normalize log-probs again after bans and the penalty
    allowed_targets: tuple[tuple[int, ...], ...] = ()  # after target_prefix, eos included; (): any
    temperature: float = 0.0  # 0: do not sample
    top_k: int = 0  # 0: sample from all tokens
    top_p: float = 1.0
    seed: int = 0
    target_prefix: tuple[int, ...] = ()  # ids that the decoder reads before the first choice
    stop: tuple[str, ...] = ()  # texts that end a hypothesis and stay in it
    stop_ids: frozenset[int] = frozenset()  # tokens that end a hypothesis and stay in it
    draft: tuple[int, ...] = ()  # what the target is expected to be, for a faster greedy search
    required: tuple[Requirement, ...] = ()  # each met by one of its phrases; needs beams
    top_log_probs: int = 0  # alternatives to report with each token
    entropies: bool = False  # whether to report the entropy at each position

    @property
    def samples(self) -> bool:
        return self.temperature > 0

    @property
    def required_tokens(self) -> set[int]:
        """The tokens of all phrases that the target may have to contain."""
        phrases = (phrase for item in self.required for phrase in item.phrases)
        return {token for phrase in phrases for token in phrase.ids}

    @property
    def reads_source(self) -> bool:
        return self.encoder_no_repeat_ngram_size > 0 or self.encoder_repetition_penalty != 1

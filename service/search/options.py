"""How one request wants its targets searched for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """A beam of 1 is greedy search, or sampling if there is a temperature. `allowed_targets` end
    with eos and are what may follow `target_prefix`."""

    max_new_tokens: int
    min_new_tokens: int = 0
    beam_size: int = 1
    num_hypotheses: int = 1
    length_penalty: float = 1.0
    early_stopping: bool = True
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    suppress_tokens: tuple[int, ...] = ()
    allowed_targets: tuple[tuple[int, ...], ...] = ()
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    target_prefix: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    top_log_probs: int = 0

    @property
    def rows(self) -> int:
        """That are decoded at once: beams, or samples."""
        return self.beam_size if self.beam_size > 1 else self.num_hypotheses

    @property
    def samples(self) -> bool:
        return self.temperature > 0

"""Collect what is wrong with a request, so that one refusal names all of it."""

from collections.abc import Sequence

from service.errors import HeedError, Invalid, TooLarge

PROBLEM_TOKENS = 64  # tokens that take as long to write as the problem of a source
PARTIAL = ', or send "partial": true for the answers to the other sources'


class Faults:
    """The errors of a request. If it is `partial`, errors of single sources are kept apart: they
    are answered in the place of their results."""

    def __init__(self, partial: bool | None = None) -> None:
        """`partial` is None if requests to this endpoint cannot be partial."""
        self.partial = bool(partial)
        self._could_be = partial is not None
        self._errors: list[HeedError] = []
        self._refused: list[int] = []  # the results to which some of `_errors` belong
        self._by_result: dict[int, list[HeedError]] = {}

    def collect(self) -> "Collecting":
        """Return a context that adds an Invalid or a TooLarge raised in it, and suppresses it."""
        return Collecting(self)

    def add(self, error: HeedError, result: int | None = None) -> None:
        """Add an error of the whole request, or of the source whose result has this index."""
        error.forget_frames()
        if self.partial and result is not None:
            self._by_result.setdefault(result, []).append(error)
        else:
            self._errors.append(error)
            self._refused += [] if result is None else [result]

    def raise_all(self, count: int = 1) -> None:
        """Raise one error for all errors of the request, if there are any. If some of its `count`
        results have none, the error advises to send the request with `partial`."""
        if not self._errors:
            return
        error = merge(self._errors)
        alone = len(self._refused) == len(self._errors) and len({*self._refused}) < count
        if self._could_be and alone:
            error.advice = PARTIAL
        raise error

    def valid(self, count: int) -> list[int]:
        """Return the indices, of `count` results, of those without an error."""
        return [result for result in range(count) if result not in self._by_result]

    @property
    def failed(self) -> dict[int, HeedError]:
        """The error of each source that has one, by the index of its result."""
        return {result: merge(errors) for result, errors in self._by_result.items()}

    @property
    def size(self) -> int:
        """Size of all failed sources in an answer, in tokens."""
        return PROBLEM_TOKENS * len(self._by_result)


class Collecting:
    """A context that adds the error that ends it to `faults`."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if isinstance(error, Invalid | TooLarge):
            self._faults.add(error)
            return True
        return False


def merge(errors: Sequence[HeedError]) -> HeedError:
    """Return one error with the faults of all errors, or the first error if it has no faults, as
    that of a failed pass has none.

    The result is TooLarge if all errors are, else Invalid: to shorten the texts is then not enough.
    """
    if len(errors) == 1 or not errors[0].faults:
        return errors[0]
    kind = TooLarge if all(isinstance(error, TooLarge) for error in errors) else Invalid
    faults = [fault for error in errors for fault in error.faults]
    return kind.of(faults, sum(error.more for error in errors))

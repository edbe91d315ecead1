"""The tokens of one episode in the order in which they were read and written."""

from collections.abc import Sequence

from grpo_cl.types import TokenTrace

OTHERS = -1
"""The version of a token that no policy wrote."""


class Tape:
    """One growing sequence; every list has an entry per token."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.mask: list[bool] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.turns: list[tuple[int, int]] = []

    def read(self, ids: Sequence[int]) -> None:
        """Add what the policy reads."""
        self._add(ids, [0.0] * len(ids), [OTHERS] * len(ids), own=False)

    def write(self, ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]) -> None:
        """Add a reply, with the versions of the weights that wrote each token."""
        self.turns.append((len(self.ids), len(self.ids) + len(ids)))
        self._add(ids, logprobs, versions, own=True)

    def trace(self, *, is_truncated: bool) -> TokenTrace:
        """The tokens as a trajectory holds them."""
        drawn = zip(self.logprobs, self.mask, strict=True)
        return TokenTrace(
            ids=tuple(self.ids),
            mask=tuple(self.mask),
            logprobs=tuple(logprob for logprob, own in drawn if own),
            turns=tuple(self.turns),
            is_truncated=is_truncated,
        )

    def _add(
        self, ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int], *, own: bool
    ) -> None:
        self.ids += ids
        self.mask += [own] * len(ids)
        self.logprobs += logprobs
        self.versions += versions

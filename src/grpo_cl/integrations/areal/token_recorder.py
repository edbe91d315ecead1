"""Records the token sequence of one episode with log-probs and weight versions."""

from collections.abc import Sequence

from grpo_cl.types import TokenTrace

NO_VERSION = -1
"""Weight version of tokens that the policy did not sample."""


class TokenRecorder:
    """A growing token sequence; every list but ``turns`` has one entry per token."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.mask: list[bool] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.turns: list[tuple[int, int]] = []

    def add_prompt(self, ids: Sequence[int]) -> None:
        """Append tokens that the policy did not sample."""
        self._add(ids, [0.0] * len(ids), [NO_VERSION] * len(ids), is_sampled=False)

    def add_completion(
        self, ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]
    ) -> None:
        """Append a sampled reply; ``versions`` are the weight versions of its tokens."""
        self.turns.append((len(self.ids), len(self.ids) + len(ids)))
        self._add(ids, logprobs, versions, is_sampled=True)

    def trace(self, *, is_truncated: bool) -> TokenTrace:
        """The tokens as stored in a trajectory."""
        tokens = zip(self.logprobs, self.mask, strict=True)
        return TokenTrace(
            ids=tuple(self.ids),
            mask=tuple(self.mask),
            logprobs=tuple(logprob for logprob, is_sampled in tokens if is_sampled),
            turns=tuple(self.turns),
            is_truncated=is_truncated,
        )

    def _add(
        self,
        ids: Sequence[int],
        logprobs: Sequence[float],
        versions: Sequence[int],
        *,
        is_sampled: bool,
    ) -> None:
        self.ids += ids
        self.mask += [is_sampled] * len(ids)
        self.logprobs += logprobs
        self.versions += versions

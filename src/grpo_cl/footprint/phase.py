"""One phase of a step and what is in memory at its fullest moment."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

PARTS = (
    "weights",
    "float32 weights",
    "moments",
    "gradients",
    "reference",
    "activations",
    "logits",
    "sampler",
    "workspace",
)
"""What memory is spent on, in the order of a table."""


@dataclass(frozen=True)
class Phase:
    """Bytes by part at the moment of the peak."""

    name: str
    parts: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def peak(self) -> int:
        """All parts together."""
        return sum(self.parts.values())

    def with_parts(self, **more: int) -> "Phase":
        """The same phase with more in it; a part's name is written with underscores."""
        added = dict(self.parts)
        for name, size in more.items():
            part = name.replace("_", " ")
            added[part] = added.get(part, 0) + size
        return Phase(self.name, added)


def fullest(moments: Iterable[Phase]) -> Phase:
    """The moment that needs most."""
    return max(moments, key=lambda moment: moment.peak)

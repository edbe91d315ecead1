"""The types and categories of memory entries, read from a YAML file."""

from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import Self

import yaml
from pydantic import ValidationError, model_validator

from grpo_cl.envs.memory.retrieval.bm25 import InvertedIndex
from grpo_cl.errors import ConfigError
from grpo_cl.types import Record, first_problem

DEFAULT_TYPE = "semantic"
"""The type of an entry if a call names none."""


class MemoryType(Record):
    """A kind of memory, such as facts or events."""

    name: str
    description: str
    is_text: bool = False
    """Whether it is one text, rewritten as a whole, instead of entries."""
    is_dated: bool = False
    """Whether entries with the same content and different timestamps are different entries."""


class Category(Record):
    """A topic of entries, such as health or work."""

    name: str
    description: str

    @property
    def text(self) -> str:
        """Name and description, for retrieval."""
        return f"{self.name.replace('_', ' ')}: {self.description}"


class Taxonomy(Record):
    """The types and categories of a memory."""

    name: str
    types: tuple[MemoryType, ...]
    categories: tuple[Category, ...]

    @model_validator(mode="after")
    def _names_are_distinct(self) -> Self:
        for names in (
            [kind.name for kind in self.types],
            [category.name for category in self.categories],
        ):
            if len(set(names)) < len(names):
                raise ValueError(f"a name occurs twice in {', '.join(names)}; rename one of them")
        if not self.entry_types:
            raise ValueError("every type is a text; give at least one type of entries")
        return self

    @cached_property
    def entry_types(self) -> dict[str, MemoryType]:
        """The types that have entries, by name."""
        return {kind.name: kind for kind in self.types if not kind.is_text}

    @cached_property
    def category_positions(self) -> dict[str, int]:
        """The position of each category, by name."""
        return {category.name: i for i, category in enumerate(self.categories)}

    @cached_property
    def term_index(self) -> InvertedIndex:
        """The index over the category descriptions, by position; copy it before adding to it."""
        index = InvertedIndex()
        for position, category in enumerate(self.categories):
            index.add(position, category.text)
        return index


@cache
def default_taxonomy() -> Taxonomy:
    """Mem-α's three types, and nine categories for a personal assistant."""
    return _taxonomy(
        files("grpo_cl.envs.memory").joinpath("taxonomy.yaml").read_text(), "taxonomy.yaml"
    )


def read_taxonomy(path: Path) -> Taxonomy:
    """The taxonomy in a YAML file."""
    try:
        return _taxonomy(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise ConfigError(f"cannot read taxonomy {path}: {error.strerror}; check it") from error


def _taxonomy(text: str, source: str) -> Taxonomy:
    try:
        return Taxonomy.model_validate(yaml.safe_load(text))
    except (yaml.YAMLError, ValidationError) as error:
        raise ConfigError(
            f"{source} is no taxonomy ({first_problem(error)}); it has a name, types and categories"
        ) from error

"""The types and categories of memories: data that a file describes."""

from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import Self

import yaml
from pydantic import ValidationError, model_validator

from grpo_cl.errors import ConfigError
from grpo_cl.memory.lexical import Postings
from grpo_cl.records import Record

DEFAULT_TYPE = "semantic"
"""The type of an entry whose writer names none."""


class MemoryType(Record):
    """A kind of memory, such as facts or events."""

    name: str
    description: str
    is_text: bool = False
    """Whether it is one text that is rewritten instead of entries."""
    is_dated: bool = False
    """Whether the same words at another time are another memory."""


class Category(Record):
    """A part of a person's life that memories are filed under."""

    name: str
    description: str

    @property
    def text(self) -> str:
        """Name and description as words to search in."""
        return f"{self.name.replace('_', ' ')}: {self.description}"


class Taxonomy(Record):
    """The types and categories a memory distinguishes."""

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
    def category_index(self) -> dict[str, int]:
        """The place of each category."""
        return {category.name: place for place, category in enumerate(self.categories)}

    @cached_property
    def words(self) -> Postings:
        """The index over the categories' descriptions, by place; copy it to add to it."""
        index = Postings()
        for place, category in enumerate(self.categories):
            index.add(place, category.text)
        return index


@cache
def default_taxonomy() -> Taxonomy:
    """Mem-α's three types and nine categories of a personal assistant."""
    return _taxonomy(files("grpo_cl.memory").joinpath("taxonomy.yaml").read_text(), "taxonomy.yaml")


def read_taxonomy(path: Path) -> Taxonomy:
    """The taxonomy a YAML file describes."""
    try:
        return _taxonomy(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise ConfigError(f"cannot read taxonomy {path}: {error.strerror}; check it") from error


def _taxonomy(text: str, source: str) -> Taxonomy:
    try:
        return Taxonomy.model_validate(yaml.safe_load(text))
    except (yaml.YAMLError, ValidationError) as error:
        raise ConfigError(
            f"{source} is no taxonomy ({error}); it has a name, types and categories"
        ) from error

import copy
import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from grpo_cl.envs.database import EpisodeDatabase, SharedDatabase, Table, clone


class Pet(BaseModel):
    name: str
    tags: list[str] = []
    owner: dict[str, int] = {}


class Zoo(BaseModel):
    pets: dict[str, Pet]
    visits: list[Pet]
    keeper: Pet


def zoo() -> Zoo:
    return Zoo(
        pets={"b": Pet(name="Bo", tags=["x"]), "a": Pet(name="Al", owner={"age": 3})},
        visits=[Pet(name="V")],
        keeper=Pet(name="K"),
    )


def plain_hash(model: BaseModel) -> str:
    text = json.dumps(model.model_dump(), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def test_an_unchanged_episode_has_the_hash_of_the_whole_database():
    assert EpisodeDatabase(SharedDatabase(zoo())).sha256() == plain_hash(zoo())


def test_a_lookup_returns_a_private_copy_and_the_base_is_unchanged():
    shared = SharedDatabase(zoo())
    first, second = EpisodeDatabase(shared), EpisodeDatabase(shared)
    first.pets["a"].tags.append("new")
    first.visits[0].name = "changed"
    first.keeper.owner["age"] = 9
    assert second.pets["a"].tags == []
    assert plain_hash(shared.model) == plain_hash(zoo())
    assert set(first.changes()) == {("pets", "a"), ("visits", ""), ("keeper", "")}
    assert second.changes() == {}


def test_base_returns_the_original_records_after_changes():
    episode = EpisodeDatabase(SharedDatabase(zoo()))
    episode.pets["a"].name = "changed"
    records = episode.base([("pets", "a"), ("pets", "new"), ("keeper", "")])
    assert json.loads(records["pets", "a"] or "")["name"] == "Al"
    assert json.loads(records["keeper", ""] or "")["name"] == "K"
    assert records["pets", "new"] is None


def test_reading_makes_no_changes():
    episode = EpisodeDatabase(SharedDatabase(zoo()))
    assert [pet.name for pet in episode.pets.values()] == ["Bo", "Al"]
    assert episode.pets["b"].name == "Bo"
    assert episode.changes() == {}


def test_an_int_and_a_float_of_equal_value_are_different_states():
    shared = SharedDatabase(zoo())
    first, second = EpisodeDatabase(shared), EpisodeDatabase(shared)
    first.pets["a"].owner["age"] = 4
    second.pets["a"].owner["age"] = 4.0
    assert first.changes() != second.changes()


def test_a_reverted_change_is_no_change():
    episode = EpisodeDatabase(SharedDatabase(zoo()))
    episode.pets["a"].name = "Zed"
    episode.pets["a"].name = "Al"
    assert episode.changes() == {}


@given(
    edits=st.lists(
        st.tuples(
            st.sampled_from(["set", "add", "delete", "list", "keeper"]), st.text("abc", max_size=2)
        )
    )
)
def test_any_sequence_of_edits_has_the_hash_of_an_edited_full_copy(edits: list[tuple[str, str]]):
    episode, model = EpisodeDatabase(SharedDatabase(zoo())), zoo()
    for kind, key in edits:
        for database in (episode, model):
            _edit(database, kind, key)
    assert episode.sha256() == plain_hash(model)


def _edit(database: EpisodeDatabase | Zoo, kind: str, key: str) -> None:
    if kind == "set" and key in database.pets:
        database.pets[key].name += "!"
    elif kind == "add":
        database.pets[key] = Pet(name=key)
    elif kind == "delete" and key in database.pets:
        del database.pets[key]
    elif kind == "list":
        database.visits.append(Pet(name=key))
    elif kind == "keeper":
        database.keeper.tags.append(key)


def test_a_table_behaves_like_a_dict():
    table = Table({"a": 1, "b": 2})
    table["c"] = 3
    del table["a"]
    assert (list(table), len(table), "a" in table, "c" in table) == (["b", "c"], 2, False, True)
    assert list(table.items()) == [("b", 2), ("c", 3)]
    with pytest.raises(KeyError):
        table["a"]
    with pytest.raises(KeyError):
        del table["a"]


def test_a_clone_equals_a_deep_copy_and_shares_no_mutable_value():
    original = zoo()
    copied = clone(original)
    assert copied == copy.deepcopy(original)
    copied.pets["a"].owner["age"] = 0
    copied.keeper.name = "other"
    assert original == zoo()
    assert original.keeper.model_fields_set == {"name"}


def test_an_unknown_table_raises_an_attribute_error():
    with pytest.raises(AttributeError):
        _ = EpisodeDatabase(SharedDatabase(zoo())).lions

import copy
import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from grpo_cl.domains.overlay import EpisodeDatabase, SharedDatabase, Table, clone, deep_update


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


def test_an_untouched_episode_hashes_as_the_whole_database_does():
    assert EpisodeDatabase(SharedDatabase(zoo())).sha256() == plain_hash(zoo())


def test_a_lookup_gives_a_private_record_and_the_base_stays_as_it_was():
    shared = SharedDatabase(zoo())
    one, other = EpisodeDatabase(shared), EpisodeDatabase(shared)
    one.pets["a"].tags.append("new")
    one.visits[0].name = "changed"
    one.keeper.owner["age"] = 9
    assert other.pets["a"].tags == []
    assert plain_hash(shared.model) == plain_hash(zoo())
    assert set(one.changes()) == {("pets", "a"), ("visits", ""), ("keeper", "")}
    assert other.changes() == {}


def test_a_database_tells_what_its_base_holds_however_it_was_changed():
    episode = EpisodeDatabase(SharedDatabase(zoo()))
    episode.pets["a"].name = "changed"
    found = episode.base([("pets", "a"), ("pets", "new"), ("keeper", "")])
    assert json.loads(found["pets", "a"] or "")["name"] == "Al"
    assert json.loads(found["keeper", ""] or "")["name"] == "K"
    assert found["pets", "new"] is None


def test_reading_alone_changes_nothing():
    episode = EpisodeDatabase(SharedDatabase(zoo()))
    assert [pet.name for pet in episode.pets.values()] == ["Bo", "Al"]
    assert episode.pets["b"].name == "Bo"
    assert episode.changes() == {}


def test_an_int_and_a_float_of_the_same_value_are_different_states():
    shared = SharedDatabase(zoo())
    one, other = EpisodeDatabase(shared), EpisodeDatabase(shared)
    one.pets["a"].owner["age"] = 4
    other.pets["a"].owner["age"] = 4.0
    assert one.changes() != other.changes()


def test_undoing_a_change_makes_the_states_equal_again():
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
def test_any_sequence_of_edits_hashes_as_a_full_copy_would(edits: list[tuple[str, str]]):
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


def test_a_table_behaves_as_a_dict():
    table = Table({"a": 1, "b": 2})
    table["c"] = 3
    del table["a"]
    assert (list(table), len(table), "a" in table, "c" in table) == (["b", "c"], 2, False, True)
    assert list(table.items()) == [("b", 2), ("c", 3)]
    with pytest.raises(KeyError):
        table["a"]
    with pytest.raises(KeyError):
        del table["a"]


def test_a_clone_equals_a_deep_copy_and_shares_nothing_that_can_change():
    original = zoo()
    twin = clone(original)
    assert twin == copy.deepcopy(original)
    twin.pets["a"].owner["age"] = 0
    twin.keeper.name = "other"
    assert original == zoo()
    assert original.keeper.model_fields_set == {"name"}


def test_an_update_merges_dicts_and_replaces_the_rest():
    base = {"a": {"x": 1, "y": [1]}, "b": 2}
    assert deep_update(base, {"a": {"y": [2]}, "b": {"z": 3}}) == {
        "a": {"x": 1, "y": [2]},
        "b": {"z": 3},
    }
    assert base == {"a": {"x": 1, "y": [1]}, "b": 2}


def test_an_unknown_table_is_an_attribute_error():
    with pytest.raises(AttributeError):
        _ = EpisodeDatabase(SharedDatabase(zoo())).lions

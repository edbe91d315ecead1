import json
import string
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import regex
import torch

from grpo_cl.llm.json_replies import VERDICT_SCHEMA, parse_verdicts
from grpo_cl.policy.inference.token_sampling import SampleParams, constrain, sample
from grpo_cl.serving.requests import RequestError
from grpo_cl.serving.structured_outputs import SchemaConstraint, schema_pattern
from grpo_cl.users.llm.strategies import CHECK_SCHEMA

VOCABULARY = [*string.printable, "true", "false", '{"', '": ', "é", ""]
STOP = len(VOCABULARY)
"""After the texts; the last text is that of a special token, which is empty."""
SHORT = {"type": "string", "maxLength": 8}


def decode(ids: Sequence[int]) -> str:
    return "".join(VOCABULARY[token] for token in ids if token < STOP)


def sampled_text(schema: Any, *, seed: int) -> str:
    """A reply of a policy with uniform logits, until it stops."""
    rng, ids = Random(seed), list[int]()
    constraint = SchemaConstraint(schema_pattern(schema), decode, [STOP])
    while len(ids) < 400:
        logits_V = torch.tensor([rng.random() for _ in range(STOP + 1)])
        constrained_V = constrain(logits_V, lambda candidates: constraint(ids, candidates))
        token = int(sample(constrained_V[None], [SampleParams(rng.random(), 1.0, 1.0)])[0, 0])
        if token == STOP:
            return decode(ids)
        ids.append(token)
    raise AssertionError(f"no end: {decode(ids)[:200]!r}")


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "object", "properties": {"a": {"type": "boolean"}, "b": SHORT}}, dict),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3}, list),
        ({"type": "array", "items": SHORT, "maxItems": 0}, list),
        ({"type": "number"}, (int, float)),
        ({"enum": ["yes", "no", 3]}, (str, int)),
        ({"const": "fixed"}, str),
        ({"type": "null"}, type(None)),
    ],
)
def test_any_policy_writes_json_of_the_schema(schema: Any, kind: Any):
    for seed in range(5):
        assert isinstance(json.loads(sampled_text(schema, seed=seed)), kind)


def test_array_has_the_number_of_items_of_the_schema():
    schema = {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2}
    assert {len(json.loads(sampled_text(schema, seed=seed))) for seed in range(5)} == {2}


def test_replies_of_judge_and_checker_match_their_schemas():
    verdicts = '{"verdicts": [{"number": 1, "reason": "it \\"is\\"", "met": true}]}'
    assert regex.fullmatch(schema_pattern(VERDICT_SCHEMA.schema), verdicts)
    assert parse_verdicts(verdicts, 1) == (True,)
    assert regex.fullmatch(schema_pattern(CHECK_SCHEMA.schema), '{"fits":false,"problem":"é"}')
    assert not regex.fullmatch(schema_pattern(CHECK_SCHEMA.schema), '{"fits": 1, "problem": ""}')


def test_reply_ends_if_no_token_fits():
    constraint = SchemaConstraint(schema_pattern({"type": "null"}), lambda ids: "w" * len(ids), [9])
    assert constraint([], range(10)) == []
    assert constraint([3], range(10)) == [9]
    logits_V = torch.arange(10.0)
    assert torch.equal(constrain(logits_V, lambda candidates: []), logits_V)


def test_token_beyond_the_most_likely_ones_is_found():
    logits_V = -torch.arange(1000.0)
    constrained_V = constrain(logits_V, lambda candidates: [t for t in candidates if t == 777])
    assert constrained_V.isfinite().nonzero().flatten().tolist() == [777]
    assert constrained_V[777] == -777


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"anyOf": [{"type": "null"}]}, "type None"),
        ({"type": "string", "pattern": "a"}, "keyword 'pattern' with type 'string'"),
        ({"type": ["string", "null"]}, "the types are object, array"),
        ({"type": "array"}, "None is no JSON schema"),
        ({"type": "array", "items": SHORT, "minItems": 2, "maxItems": 1}, "minItems 2"),
        ({"type": "string", "maxLength": True}, "maxLength True"),
        ({"type": "object", "properties": []}, "have to be an object"),
        ({"enum": []}, "has to be a list of values"),
    ],
)
def test_unsupported_schema_is_refused(schema: Any, message: str):
    with pytest.raises(RequestError, match=message):
        schema_pattern(schema)

from copy import deepcopy
from typing import Any

import pytest

from chat_stories import (
    GREETING,
    STORY,
    SYSTEM,
    as_turn,
    calling,
    chat_of,
    decoded,
    episode,
    flat,
    rendered,
    result,
    said,
    scene,
    user,
)
from chat_templates import CHATML, HERMES, STYLES, TOOLS, tokenizer_of
from grpo_cl.errors import ConfigError
from grpo_cl.policy.chat import Chat, chat_for
from grpo_cl.policy.compact import CompactChat, train_tokenizer
from grpo_cl.types import Message, ToolCall


@pytest.mark.parametrize(
    ("style", "dialect", "has_tool_template"),
    [
        ("hermes", "hermes", True),
        ("llama", "llama", True),
        ("mistral", "mistral", True),
        ("chatml", "json", False),
        ("thinking", "json", False),
        ("strict", "json", False),
        ("unmarked", "json", False),
        ("none", "json", False),
    ],
)
def test_dialect_and_tool_support_are_found_by_rendering(
    style: str, dialect: str, has_tool_template: bool
) -> None:
    chat = chat_of(style)
    assert chat.dialect.name == dialect
    assert chat.has_tool_template is has_tool_template


def test_a_dialect_other_than_the_templates_is_described_in_words() -> None:
    chat = chat_of("hermes", "json")
    assert not chat.has_tool_template
    text = decoded("hermes", chat.opening(scene(), [user("Hi")]))
    assert "on a line of its own" in text
    assert "<tools>" not in text


def test_an_unknown_dialect_is_named_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="unknown dialect 'qwen'; known: hermes, json"):
        chat_of("hermes", "qwen")


def test_hermes_episode_is_the_templates_own_rendering() -> None:
    built = episode(chat_of("hermes"), [GREETING, user("My order?")], STORY)
    history = [{"role": "system", "content": SYSTEM}, as_turn(GREETING), as_turn(user("My order?"))]
    turns = [*history, *map(as_turn, flat(*STORY))]
    assert decoded("hermes", built) == rendered("hermes", turns, tools=TOOLS)


def test_several_calls_and_results_are_the_templates_own_rendering() -> None:
    both = (calling("W1", "W2"), [result("open", 0), result("lost", 1)])
    built = episode(chat_of("hermes"), [user("Both?")], [both])
    turns = [{"role": "system", "content": SYSTEM}, as_turn(user("Both?"))]
    expected = rendered("hermes", [*turns, *map(as_turn, flat(both))], tools=TOOLS)
    assert decoded("hermes", built) == expected


def test_llama_takes_the_system_text_as_the_first_user_message_before_a_greeting() -> None:
    built = episode(chat_of("llama"), [GREETING, user("My order?")], STORY)
    history = [{"role": "user", "content": SYSTEM}, as_turn(GREETING), as_turn(user("My order?"))]
    turns = [*history, *map(as_turn, flat(*STORY))]
    assert decoded("llama", built) == rendered("llama", turns, tools=TOOLS)


def test_llama_keeps_the_system_role_where_a_user_speaks_first() -> None:
    built = episode(chat_of("llama"), [user("My order?")], STORY)
    turns = [{"role": "system", "content": SYSTEM}, as_turn(user("My order?"))]
    expected = rendered("llama", [*turns, *map(as_turn, flat(*STORY))], tools=TOOLS)
    assert decoded("llama", built) == expected


def test_mistral_episode_with_one_user_message_is_the_templates_own_rendering() -> None:
    exchanges = [STORY[0], (calling("W1", "W2"), [result("a", 0), result("b", 1)])]
    built = episode(chat_of("mistral"), [user("My order?")], exchanges)
    turns = [{"role": "system", "content": SYSTEM}, as_turn(user("My order?"))]
    expected = rendered("mistral", [*turns, *map(as_turn, flat(*exchanges))], tools=TOOLS)
    assert decoded("mistral", built) == expected


def test_mistral_lists_tools_once_though_its_template_moves_them() -> None:
    text = decoded("mistral", episode(chat_of("mistral"), [GREETING, user("My order?")], STORY))
    assert text.count("[AVAILABLE_TOOLS]") == 1
    assert text.count(SYSTEM) == 1
    assert text.index(SYSTEM) < text.index("Hello, how") < text.index("My order?")
    assert text.count("<s>") == 1


def test_mistral_with_leading_spaces_has_the_ids_of_the_whole_text() -> None:
    tokenizer = tokenizer_of("mistral", metaspace=True)
    exchanges = [STORY[0], (said("It is on its way."), [user("Hi again")])]
    chat = Chat(tokenizer)
    built = episode(chat, [user("My order?")], exchanges)
    text = tokenizer.decode(built, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert "[/INST][TOOL_CALLS]" in text
    assert built == tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("style", ["chatml", "strict", "unmarked"])
def test_without_tool_support_an_episode_is_rendered_with_described_tools(style: str) -> None:
    chat = chat_of(style)
    built = episode(chat, [GREETING, user("My order?")], STORY)
    system = f"{chat.dialect.describe(TOOLS)}\n\n{SYSTEM}"
    turns: list[dict[str, Any]] = [
        {"role": "user" if style == "strict" else "system", "content": system}
    ]
    for message in [GREETING, user("My order?"), *flat(*STORY)]:
        if message.role == "tool":
            turns.append({"role": "user", "content": f"Tool result: {message.content}"})
        else:
            turns.append({"role": message.role, "content": chat.dialect.write(message)})
    text = decoded(style, built)
    if style == "unmarked":  # the template has no end of turn, but a reply has one
        assert text.count("</s>") == len(STORY)
        text = text.replace("</s>", "")
    assert text == rendered(style, turns)


def test_described_tools_come_first_so_that_tasks_of_a_domain_begin_alike() -> None:
    chat = chat_of("chatml")
    one, other = (
        chat.opening(scene()._replace(system=f"Rules. Ticket: {ticket}"), ())
        for ticket in ("first", "second")
    )
    length = next(place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    shared = decoded("chatml", one[:length])
    assert chat.dialect.describe(TOOLS) in shared
    assert shared.endswith("Rules. Ticket:")


def test_an_opening_that_is_met_again_has_the_same_ids_and_is_a_list_of_its_own() -> None:
    chat = chat_of("chatml")
    first = chat.opening(scene(), [user("Hi")])
    kept = list(first)
    first.append(0)
    assert chat.opening(scene(), [user("Hi")]) == kept
    assert chat.opening(scene(), [user("Hey")]) != kept


def test_without_a_template_a_plain_one_is_used() -> None:
    text = decoded("none", episode(chat_of("none"), [user("Hi")], [STORY[2]]))
    assert text.endswith(
        "User: Hi\n\nAssistant: It is on its way.</s>\n\nUser: And the other one?\n\nAssistant:"
    )


@pytest.mark.parametrize("style", STYLES)
def test_alone_the_system_text_and_the_tools_are_enough(style: str) -> None:
    chat = chat_of(style)
    text = decoded(style, chat.opening(scene(system="The ticket.", solo=True), []))
    assert text.count("The ticket.") == 1
    assert text.count("find_order") == 1
    assert text.endswith(chat._template.prompt)


def test_a_template_that_needs_a_user_message_gets_the_system_text_there() -> None:
    text = decoded("mistral", chat_of("mistral").opening(scene(solo=True, tools=()), []))
    assert text == f"<s>[INST] {SYSTEM}[/INST]"
    text = decoded("strict", chat_of("strict").opening(scene(solo=True, tools=()), []))
    assert text == f"<s><start_of_turn>user\n{SYSTEM}<end_of_turn>\n<start_of_turn>model\n"


@pytest.mark.parametrize("style", ["strict", "mistral"])
def test_roles_alternate_where_they_must(style: str) -> None:
    chat = chat_of(style)
    opening = chat.opening(scene(tools=()), [GREETING, user("One."), user("Two.")])
    assert "One.\n\nTwo." in decoded(style, opening)
    following = chat.continuation([user("Three."), user("Four.")], ended=True)
    assert "Three.\n\nFour." in decoded(style, following)


@pytest.mark.parametrize("style", STYLES)
def test_an_opening_may_hold_tool_calls(style: str) -> None:
    chat = chat_of(style)
    both = calling("W1", "W2")
    history = [GREETING, user("My order?"), both, result("open"), result("lost", 1)]
    text = decoded(style, chat.opening(scene(), history))
    parts = ["Hello, how", "My order?", '"W1"', '"W2"', "open", "lost"]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


def test_what_the_user_does_with_their_own_tools_is_not_shown() -> None:
    own = ToolCall(id="u", name="toggle", requestor="user")
    hidden = [
        Message(role="user", tool_calls=(own,)),
        Message(role="tool", id="u", content="SECRET", requestor="user"),
    ]
    chat = chat_of("hermes")
    assert chat.continuation([*hidden, user("Done.")], ended=True) == chat.continuation(
        [user("Done.")], ended=True
    )


def test_a_template_asks_for_no_date() -> None:
    text = decoded("llama", chat_of("llama").opening(scene(), [user("Hi")]))
    assert "Today: 26 Jul 2024\n" in text


def test_a_template_that_hides_replies_gives_way_to_a_plain_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = Chat(with_template("unmarked", "{{ messages | length }}"))
    assert "a plain chat template is used instead" in caplog.text
    ids = broken.continuation([user("Hi")], ended=True)
    assert decoded("unmarked", ids) == "\n\nUser: Hi\n\nAssistant:"


def with_template(style: str, source: str) -> Any:
    tokenizer = deepcopy(tokenizer_of(style))
    tokenizer.chat_template = source
    return tokenizer


def test_compact_is_the_embedded_policys_own_chat() -> None:
    tokenizer = train_tokenizer(["a ticket"], size=300)
    assert isinstance(chat_for(tokenizer, "compact"), CompactChat)
    assert isinstance(chat_for(tokenizer_of("hermes"), "auto"), Chat)


def test_of_several_templates_the_one_for_tools_is_used() -> None:
    tokenizer = deepcopy(tokenizer_of("hermes"))
    tokenizer.chat_template = {"default": CHATML, "tool_use": HERMES}
    chat = Chat(tokenizer)
    assert chat.has_tool_template
    assert chat.opening(scene(), [user("Hi")]) == chat_of("hermes").opening(scene(), [user("Hi")])


def test_a_tokenizer_without_any_end_is_refused() -> None:
    tokenizer = deepcopy(tokenizer_of("unmarked"))
    tokenizer.eos_token = None
    with pytest.raises(ConfigError, match=r"set tokenizer\.eos_token"):
        Chat(tokenizer)

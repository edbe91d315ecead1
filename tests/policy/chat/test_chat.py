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
    episode_setup,
    flat,
    rendered,
    result,
    said,
    user,
)
from chat_templates import CHATML, HERMES, STYLES, TOOLS, tokenizer_of
from grpo_cl.errors import ConfigError
from grpo_cl.policy.chat.chat import Chat, chat_for
from grpo_cl.policy.chat.compact import CompactChat, train_tokenizer
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
def test_dialect_and_tool_support_are_detected_by_rendering(
    style: str, dialect: str, has_tool_template: bool
) -> None:
    chat = chat_of(style)
    assert chat.dialect.name == dialect
    assert chat.has_tool_template is has_tool_template


def test_configured_dialect_overrides_the_template_and_tools_are_described() -> None:
    chat = chat_of("hermes", "json")
    assert not chat.has_tool_template
    text = decoded("hermes", chat.opening(episode_setup(), [user("Hi")]))
    assert "on a line of its own" in text
    assert "<tools>" not in text


def test_unknown_dialect_error_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="unknown dialect 'qwen'; known: hermes, json"):
        chat_of("hermes", "qwen")


def test_hermes_episode_equals_the_rendering_of_the_template() -> None:
    built = episode(chat_of("hermes"), [GREETING, user("My order?")], STORY)
    history = [{"role": "system", "content": SYSTEM}, as_turn(GREETING), as_turn(user("My order?"))]
    turns = [*history, *map(as_turn, flat(*STORY))]
    assert decoded("hermes", built) == rendered("hermes", turns, tools=TOOLS)


def test_several_calls_and_results_equal_the_rendering_of_the_template() -> None:
    both = (calling("W1", "W2"), [result("open", 0), result("lost", 1)])
    built = episode(chat_of("hermes"), [user("Both?")], [both])
    turns = [{"role": "system", "content": SYSTEM}, as_turn(user("Both?"))]
    expected = rendered("hermes", [*turns, *map(as_turn, flat(both))], tools=TOOLS)
    assert decoded("hermes", built) == expected


def test_llama_system_text_becomes_a_user_message_before_a_greeting() -> None:
    built = episode(chat_of("llama"), [GREETING, user("My order?")], STORY)
    history = [{"role": "user", "content": SYSTEM}, as_turn(GREETING), as_turn(user("My order?"))]
    turns = [*history, *map(as_turn, flat(*STORY))]
    assert decoded("llama", built) == rendered("llama", turns, tools=TOOLS)


def test_llama_keeps_the_system_role_if_the_first_message_is_the_users() -> None:
    built = episode(chat_of("llama"), [user("My order?")], STORY)
    turns = [{"role": "system", "content": SYSTEM}, as_turn(user("My order?"))]
    expected = rendered("llama", [*turns, *map(as_turn, flat(*STORY))], tools=TOOLS)
    assert decoded("llama", built) == expected


def test_mistral_episode_with_one_user_message_equals_the_rendering_of_the_template() -> None:
    exchanges = [STORY[0], (calling("W1", "W2"), [result("a", 0), result("b", 1)])]
    built = episode(chat_of("mistral"), [user("My order?")], exchanges)
    turns = [{"role": "system", "content": SYSTEM}, as_turn(user("My order?"))]
    expected = rendered("mistral", [*turns, *map(as_turn, flat(*exchanges))], tools=TOOLS)
    assert decoded("mistral", built) == expected


def test_mistral_lists_tools_once_although_its_template_moves_them() -> None:
    text = decoded("mistral", episode(chat_of("mistral"), [GREETING, user("My order?")], STORY))
    assert text.count("[AVAILABLE_TOOLS]") == 1
    assert text.count(SYSTEM) == 1
    assert text.index(SYSTEM) < text.index("Hello, how") < text.index("My order?")
    assert text.count("<s>") == 1


def test_mistral_ids_with_leading_spaces_equal_those_of_the_whole_text() -> None:
    tokenizer = tokenizer_of("mistral", metaspace=True)
    exchanges = [STORY[0], (said("It is on its way."), [user("Hi again")])]
    chat = Chat(tokenizer)
    built = episode(chat, [user("My order?")], exchanges)
    text = tokenizer.decode(built, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert "[/INST][TOOL_CALLS]" in text
    assert built == tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("style", ["chatml", "strict", "unmarked"])
def test_template_without_tool_support_gets_a_description_of_the_tools(style: str) -> None:
    chat = chat_of(style)
    built = episode(chat, [GREETING, user("My order?")], STORY)
    system = f"{chat.dialect.describe_tools(TOOLS)}\n\n{SYSTEM}"
    turns: list[dict[str, Any]] = [
        {"role": "user" if style == "strict" else "system", "content": system}
    ]
    for message in [GREETING, user("My order?"), *flat(*STORY)]:
        if message.role == "tool":
            turns.append({"role": "user", "content": f"Tool result: {message.content}"})
        else:
            turns.append({"role": message.role, "content": chat.dialect.format_message(message)})
    text = decoded(style, built)
    if style == "unmarked":  # the template has no end of turn, but a reply has one
        assert text.count("</s>") == len(STORY)
        text = text.replace("</s>", "")
    assert text == rendered(style, turns)


def test_tool_description_comes_first_so_that_tasks_of_a_domain_share_a_prefix() -> None:
    chat = chat_of("chatml")
    first, second = (
        chat.opening(episode_setup()._replace(system=f"Rules. Ticket: {ticket}"), ())
        for ticket in ("first", "second")
    )
    length = next(
        position for position, (a, b) in enumerate(zip(first, second, strict=False)) if a != b
    )
    shared = decoded("chatml", first[:length])
    assert chat.dialect.describe_tools(TOOLS) in shared
    assert shared.endswith("Rules. Ticket:")


def test_cached_opening_returns_equal_but_separate_lists() -> None:
    chat = chat_of("chatml")
    first = chat.opening(episode_setup(), [user("Hi")])
    kept = list(first)
    first.append(0)
    assert chat.opening(episode_setup(), [user("Hi")]) == kept
    assert chat.opening(episode_setup(), [user("Hey")]) != kept


def test_cached_opening_belongs_to_its_tools() -> None:
    chat = chat_of("chatml")
    with_tools = chat.opening(episode_setup(), [user("Hi")])
    without = chat.opening(episode_setup(tools=()), [user("Hi")])
    assert without != with_tools
    assert chat.opening(episode_setup(), [user("Hi")]) == with_tools
    assert chat.opening(episode_setup(tools=()), [user("Hi")]) == without


def test_tokenizer_without_template_uses_the_fallback() -> None:
    text = decoded("none", episode(chat_of("none"), [user("Hi")], [STORY[2]]))
    assert text.endswith(
        "User: Hi\n\nAssistant: It is on its way.</s>\n\nUser: And the other one?\n\nAssistant:"
    )


@pytest.mark.parametrize("style", STYLES)
def test_opening_needs_no_messages(style: str) -> None:
    chat = chat_of(style)
    text = decoded(style, chat.opening(episode_setup(system="The ticket.", solo=True), []))
    assert text.count("The ticket.") == 1
    assert text.count("find_order") == 1
    assert text.endswith(chat._template.generation_prompt)


def test_template_that_needs_a_user_message_gets_the_system_text_in_it() -> None:
    text = decoded("mistral", chat_of("mistral").opening(episode_setup(solo=True, tools=()), []))
    assert text == f"<s>[INST] {SYSTEM}[/INST]"
    text = decoded("strict", chat_of("strict").opening(episode_setup(solo=True, tools=()), []))
    assert text == f"<s><start_of_turn>user\n{SYSTEM}<end_of_turn>\n<start_of_turn>model\n"


@pytest.mark.parametrize("style", ["strict", "mistral"])
def test_messages_of_one_role_are_merged_for_templates_that_need_alternation(style: str) -> None:
    chat = chat_of(style)
    opening = chat.opening(episode_setup(tools=()), [GREETING, user("One."), user("Two.")])
    assert "One.\n\nTwo." in decoded(style, opening)
    following = chat.continuation([user("Three."), user("Four.")], ended=True)
    assert "Three.\n\nFour." in decoded(style, following)


@pytest.mark.parametrize("style", STYLES)
def test_opening_can_hold_tool_calls(style: str) -> None:
    chat = chat_of(style)
    both = calling("W1", "W2")
    history = [GREETING, user("My order?"), both, result("open"), result("lost", 1)]
    text = decoded(style, chat.opening(episode_setup(), history))
    parts = ["Hello, how", "My order?", '"W1"', '"W2"', "open", "lost"]
    positions = [text.index(part) for part in parts]
    assert positions == sorted(positions)


def test_user_tool_calls_and_results_are_hidden() -> None:
    own = ToolCall(id="u", name="toggle", requestor="user")
    hidden = [
        Message(role="user", tool_calls=(own,)),
        Message(role="tool", id="u", content="SECRET", requestor="user"),
    ]
    chat = chat_of("hermes")
    assert chat.continuation([*hidden, user("Done.")], ended=True) == chat.continuation(
        [user("Done.")], ended=True
    )


def test_template_date_is_fixed() -> None:
    text = decoded("llama", chat_of("llama").opening(episode_setup(), [user("Hi")]))
    assert "Today: 26 Jul 2024\n" in text


def test_template_that_hides_replies_is_replaced_by_the_fallback(
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


def test_compact_dialect_selects_the_compact_chat() -> None:
    tokenizer = train_tokenizer(["a ticket"], size=300)
    assert isinstance(chat_for(tokenizer, "compact"), CompactChat)
    assert isinstance(chat_for(tokenizer, "auto"), CompactChat)
    assert isinstance(chat_for(tokenizer_of("hermes"), "auto"), Chat)
    with pytest.raises(ConfigError, match=r"dialect=compact needs the token <\|call\|>"):
        chat_for(tokenizer_of("hermes"), "compact")


def test_tool_use_template_is_preferred() -> None:
    tokenizer = deepcopy(tokenizer_of("hermes"))
    tokenizer.chat_template = {"default": CHATML, "tool_use": HERMES}
    chat = Chat(tokenizer)
    assert chat.has_tool_template
    assert chat.opening(episode_setup(), [user("Hi")]) == chat_of("hermes").opening(
        episode_setup(), [user("Hi")]
    )


def test_tokenizer_without_an_end_token_is_rejected() -> None:
    tokenizer = deepcopy(tokenizer_of("unmarked"))
    tokenizer.eos_token = None
    with pytest.raises(ConfigError, match=r"set tokenizer\.eos_token"):
        Chat(tokenizer)

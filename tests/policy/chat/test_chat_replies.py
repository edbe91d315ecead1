import re
from copy import deepcopy

import pytest

from chat_stories import (
    SYSTEM,
    as_turn,
    calling,
    chat_of,
    decoded,
    episode_setup,
    rendered,
    result,
    said,
    user,
)
from chat_templates import CHATML, STYLES, tokenizer_of
from grpo_cl.policy.chat.chat import Chat
from grpo_cl.types import Message, ToolCall


def test_reasoning_of_earlier_turns_keeps_its_sampled_ids() -> None:
    chat, tokenizer = chat_of("thinking"), tokenizer_of("thinking")
    ids = chat.opening(episode_setup(tools=()), [user("Hi")])
    contents: list[str] = []
    for text in ("One.", "Two."):
        contents.append(f"<think>\nWhat to say?\n</think>\n\n{text}")
        sampled = tokenizer(f"{contents[-1]}<|im_end|>", add_special_tokens=False)["input_ids"]
        assert chat.parse_reply(sampled).content == text
        ids += [*sampled, *chat.continuation([user("More")], ended=True)]
    turns = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Hi"}]
    for content in contents:
        turns += [{"role": "assistant", "content": content}, {"role": "user", "content": "More"}]
    whole = decoded("thinking", ids)
    assert whole.count("What to say?") == 2
    without = re.sub(r"<think>.*?</think>\s*", "", whole, flags=re.DOTALL)
    assert without == rendered("thinking", turns)


def test_unclosed_reasoning_gives_an_empty_message() -> None:
    sampled = tokenizer_of("thinking")("<think>\nHm", add_special_tokens=False)["input_ids"]
    assert chat_of("thinking").parse_reply(sampled) == Message(role="assistant")


@pytest.mark.parametrize("style", STYLES)
def test_sampled_ids_are_kept_however_the_text_was_split(style: str) -> None:
    chat, tokenizer = chat_of(style), tokenizer_of(style)
    text = chat.dialect.format_message(calling("W1"))
    usual = tokenizer(text, add_special_tokens=False)["input_ids"]
    pieces = [piece for token in usual for piece in single_characters(style, token)]
    sampled = [*pieces, chat.stop_ids[0]]
    assert len(sampled) > len(usual) + 10
    call = only_call(chat.parse_reply(sampled))
    assert (call.name, call.arguments) == ("find_order", {"order": "W1"})
    opening = chat.opening(episode_setup(), [user("My order?")])
    ids = [*opening, *sampled, *chat.continuation([result("open")], ended=True)]
    assert decoded(style, ids) == decoded(style, opening) + text + decoded(
        style, [chat.stop_ids[0], *chat.continuation([result("open")], ended=True)]
    )


def single_characters(style: str, token: int) -> list[int]:
    tokenizer = tokenizer_of(style)
    if token in tokenizer.added_tokens_decoder:
        return [token]
    vocabulary = tokenizer.get_vocab()
    return [vocabulary[char] for char in str(tokenizer.convert_ids_to_tokens(token))]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("after", [[user("Go on")], [result("open")]])
def test_truncated_reply_is_closed_before_the_continuation(
    style: str, after: list[Message]
) -> None:
    chat = chat_of(style)
    reply = chat.encode_reply(
        calling("W1") if after[0].role == "tool" else said("It is on its way.")
    )
    ended, truncated = (chat.continuation(after, ended=value) for value in (True, False))
    if style == "unmarked":
        assert truncated == ended  # the template writes no end of turn
    else:
        assert truncated[0] == reply[-1] == chat.stop_ids[0]
        assert truncated[1:] == ended
    for length in range(len(reply)):
        assert chat.parse_reply(reply[:length]).role == "assistant"


@pytest.mark.parametrize("style", ["hermes", "chatml"])
def test_truncated_text_equals_the_rendering_of_the_template(style: str) -> None:
    chat = chat_of(style)
    opening = chat.opening(episode_setup(tools=()), [user("Hi")])
    reply = chat.encode_reply(said("It is on its way."))
    for length in range(1, len(reply) - 1):
        ids = [*opening, *reply[:length], *chat.continuation([user("Yes?")], ended=False)]
        written = decoded(style, reply[:length])
        turns = [as_turn(m) for m in (user("Hi"), said(written), user("Yes?"))]
        assert decoded(style, ids) == rendered(
            style, [{"role": "system", "content": SYSTEM}, *turns]
        )


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "message",
    [said("It is on its way."), calling("W1"), calling("W1", "W2"), calling('"</tool_call>é\n{')],
)
def test_encoded_reply_parses_back_to_itself(style: str, message: Message) -> None:
    for dialect in ("auto", "hermes", "llama", "mistral", "json"):
        chat = chat_of(style, dialect)
        ids = chat.encode_reply(message)
        assert ids[-1] == chat.stop_ids[0]
        assert not set(ids[:-1]) & set(chat.stop_ids)
        parsed = chat.parse_reply(ids)
        assert parsed.content == message.content
        assert [(c.name, c.arguments) for c in parsed.tool_calls or ()] == [
            (c.name, c.arguments) for c in message.tool_calls or ()
        ]


@pytest.mark.parametrize("style", STYLES)
def test_encoded_reply_with_text_and_a_call_parses_back_to_itself(style: str) -> None:
    message = calling("W1").model_copy(update={"content": "Let me look."})
    for dialect in ("auto", "hermes", "llama", "mistral", "json"):
        chat = chat_of(style, dialect)
        parsed = chat.parse_reply(chat.encode_reply(message))
        assert (parsed.content, len(parsed.tool_calls or ())) == ("Let me look.", 1)


def test_sampled_call_id_is_kept_for_the_result() -> None:
    chat, tokenizer = chat_of("mistral"), tokenizer_of("mistral")
    text = '[TOOL_CALLS] [{"name": "find_order", "arguments": {}, "id": "aB3dE6gH9"}]</s>'
    call = only_call(chat.parse_reply(tokenizer(text, add_special_tokens=False)["input_ids"]))
    assert call.id == "aB3dE6gH9"
    tool_result = Message(role="tool", id=call.id, content="open")
    following = decoded("mistral", chat.continuation([tool_result], ended=True))
    assert following == '[TOOL_RESULTS] {"content": "open", "call_id": "aB3dE6gH9"}[/TOOL_RESULTS]'


@pytest.mark.parametrize(
    ("style", "stops"),
    [
        ("hermes", ["<|im_end|>", "<|endoftext|>"]),
        ("llama", ["<|eot_id|>", "<|eom_id|>"]),
        ("mistral", ["</s>"]),
        ("strict", ["<end_of_turn>", "<eos>"]),
        ("unmarked", ["</s>"]),
    ],
)
def test_stop_ids_are_the_ends_of_turn_and_of_text(style: str, stops: list[str]) -> None:
    tokenizer = tokenizer_of(style)
    assert tokenizer.convert_ids_to_tokens(list(chat_of(style).stop_ids)) == stops


def test_parsing_ends_at_the_first_stop_id_and_ignores_unknown_ids() -> None:
    chat = chat_of("hermes")
    ids = chat.encode_reply(said("Yes."))
    assert chat.parse_reply([*ids, *ids]).content == "Yes."
    assert chat.parse_reply([10**6, *ids]).content == "Yes."
    assert chat.parse_reply([]) == Message(role="assistant")


def only_call(message: Message) -> ToolCall:
    assert message.tool_calls is not None
    assert len(message.tool_calls) == 1
    return message.tool_calls[0]


def test_reply_to_a_prompt_that_opens_reasoning_closes_it_first() -> None:
    tokenizer = deepcopy(tokenizer_of("thinking"))
    tokenizer.chat_template = CHATML.replace("assistant\n' }}", "assistant\n<think>\n' }}")
    chat = Chat(tokenizer)
    ids = chat.encode_reply(said("Yes."))
    assert decoded("thinking", ids) == "\n</think>\n\nYes.<|im_end|>"
    assert chat.parse_reply(ids).content == "Yes."
    assert chat.parse_reply(ids[3:]) == Message(role="assistant")

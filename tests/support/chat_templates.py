"""Small real tokenizers with chat templates in the styles of common models."""

from functools import cache
from typing import NamedTuple

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find_order",
            "description": "Find an order.",
            "parameters": {
                "type": "object",
                "properties": {"order": {"type": "string", "description": "Its number."}},
                "required": ["order"],
            },
        },
    }
]

HERMES = """{%- set first = 0 %}
{%- if tools or messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content }}{%- endif %}
    {%- if tools %}
        {{- '\n\nTools:\n<tools>' }}
        {%- for tool in tools %}{{- '\n' + (tool | tojson) }}{%- endfor %}
        {{- '\n</tools>\nCalls look so:\n<tool_call>\n{"name": <name>, "arguments": <object>}\n' }}
        {{- '</tool_call>' }}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content %}{{- '\n' + message.content }}{%- endif %}
        {%- for call in message.tool_calls %}
            {{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (call.function.arguments | tojson) + '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""

LLAMA = """{{- bos_token }}
{%- set system = '' %}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content %}
    {%- set messages = messages[1:] %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\nToday: ' + strftime_now('%d %b %Y') }}
{{- '\n\n' + system + '<|eot_id|>' }}
{%- if tools %}
    {%- if not messages %}{{- raise_exception('No user message for the tools!') }}{%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\n\nAnswer with a call of:\n' }}
    {%- for tool in tools %}{{- (tool | tojson(indent=4)) + '\n\n' }}{%- endfor %}
    {{- (messages[0].content | trim) + '<|eot_id|>' }}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- for message in messages %}
    {%- if message.tool_calls %}
        {%- if message.tool_calls | length != 1 %}
            {{- raise_exception('One call at a time!') }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + call.name }}
        {{- '", "parameters": ' + (call.arguments | tojson) + '}<|eot_id|>' }}
    {%- elif message.role == 'tool' %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\n\n' }}
        {{- (message.content | tojson) + '<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' }}
        {{- (message.content | trim) + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}"""

MISTRAL = """{{- bos_token }}
{%- set ns = namespace(system='', users=0, last=-1) %}
{%- for message in messages %}
    {%- if message.role == 'system' %}{%- set ns.system = message.content + '\n\n' %}{%- endif %}
    {%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}
    {%- if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) %}
        {%- if (message.role == 'user') != (ns.users % 2 == 0) %}
            {{- raise_exception('User and assistant must alternate, user first!') }}
        {%- endif %}
        {%- set ns.users = ns.users + 1 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- if tools and loop.index0 == ns.last %}
            {{- '[AVAILABLE_TOOLS] ' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST] ' + (ns.system if loop.index0 == ns.last else '') }}
        {{- message.content + '[/INST]' }}
    {%- elif message.tool_calls %}
        {{- '[TOOL_CALLS] [' }}
        {%- for call in message.tool_calls %}
            {%- if call.id | length != 9 %}{{- raise_exception('Nine characters!') }}{%- endif %}
            {{- '{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (call.function.arguments | tojson) + ', "id": "' + call.id + '"}' }}
            {{- ']' + eos_token if loop.last else ', ' }}
        {%- endfor %}
    {%- elif message.role == 'tool' %}
        {%- if message.tool_call_id | length != 9 %}
            {{- raise_exception('Nine characters!') }}
        {%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + (message.content | tojson) }}
        {{- ', "call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- elif message.role == 'assistant' %}
        {{- ' ' + message.content + eos_token }}
    {%- endif %}
{%- endfor %}"""

CHATML = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""

THINKING = """{%- set ns = namespace(last=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' and '</think>' in content and loop.index0 < ns.last %}
        {%- set content = content.split('</think>')[-1].lstrip() %}
    {%- endif %}
    {%- if message.role == 'assistant' and loop.last and '</think>' not in content %}
        {%- set content = '<think>\n\n</think>\n\n' + content %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""

STRICT = """{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'system' %}{{- raise_exception('No system role!') }}{%- endif %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate!') }}
    {%- endif %}
    {%- set role = 'model' if message.role == 'assistant' else message.role %}
    {{- '<start_of_turn>' + role + '\n' + (message.content | trim) + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\n' }}{%- endif %}"""

UNMARKED = """{%- for message in messages %}
    {{- message.role + ': ' + message.content + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- 'assistant:' }}{%- endif %}"""


class Style(NamedTuple):
    source: str | None
    special: tuple[str, ...]
    """The first is the end-of-text token."""
    added: tuple[str, ...] = ()
    """Added tokens that are not special."""


_IM = ("<|im_end|>", "<|im_start|>", "<|endoftext|>")
_TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_HEADERS = ("<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|python_tag|>")
_BRACKETS = (
    *("[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
)
STYLES = {
    "hermes": Style(HERMES, _IM, _TAGS),
    "llama": Style(LLAMA, ("<|eot_id|>", *_HEADERS)),
    "mistral": Style(MISTRAL, ("</s>", *_BRACKETS)),
    "chatml": Style(CHATML, _IM),
    "thinking": Style(THINKING, _IM, ("<think>", "</think>")),
    "strict": Style(STRICT, ("<eos>", "<start_of_turn>", "<end_of_turn>")),
    "unmarked": Style(UNMARKED, ("</s>",)),
    "none": Style(None, ("</s>",)),
}

_WORDS = (
    '{"name": "find_order", "arguments": {"order": "W1"}} parameters call_id content assistant',
    "Hello, how can I help you today? My order has not come. It is on its way. Tool result: user",
    "These are your tools, one JSON schema per line: system model ipython You are an agent.",
)


@cache
def tokenizer_of(style: str, *, metaspace: bool = False) -> PreTrainedTokenizerFast:
    """A tokenizer of a style; ``metaspace`` prepends a space to a text, as SentencePiece does."""
    source, special, added = STYLES[style]
    backend = Tokenizer(models.BPE(byte_fallback=metaspace))
    if metaspace:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        backend.decoder = decoders.Metaspace(prepend_scheme="first")
        alphabet = sorted({chr(code) for code in range(32, 127)} | {"\n", "…", "é", "\u2581"})
    else:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(_WORDS * 3, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token=special[0],
        additional_special_tokens=list(special[1:]),
        chat_template=source,
    )
    tokenizer.add_tokens(list(added))
    return tokenizer

import resource

import pytest

from chat_templates import STYLES, tokenizer_of
from grpo_cl.errors import ConfigError
from grpo_cl.policy.chat.chat_template import FALLBACK_TEMPLATE, ChatTemplate
from grpo_cl.policy.chat.special_tokens import SpecialTokens
from grpo_cl.policy.chat.template_limits import MAX_LINES

PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}</s>{% endfor %}"
LOOPS = "{% for i in range(90000) %}{% for j in range(90000) %}x{% endfor %}{% endfor %}"


def probe(source: str) -> ChatTemplate:
    tokenizer = tokenizer_of(next(iter(STYLES)))
    return ChatTemplate(tokenizer, source, SpecialTokens(tokenizer, source))


@pytest.mark.parametrize(
    ("bomb", "problem"),
    [
        ("{% for i in range(10**9) %}x{% endfor %}", "a power"),
        ("{{ 9 ** 9 ** 9 }}", "a power"),
        ("{{ 'x' * 100000000000 }}", "the number 100000000000"),
        ("{{ 'x' * 9000 * 9000 * 9000 * 9000 * 9000 }}", "more than 4 products"),
        ("{{ range(10000000000) | list | length }}", "the number 10000000000"),
        ("{{ 'x' | center(9999999999) }}", "the number 9999999999"),
        (LOOPS, f"more than {MAX_LINES} lines"),
        (
            "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}"
            "{{ m(60) }}",
            f"more than {MAX_LINES} lines",
        ),
        (
            "{% set n = namespace(t='x') %}{% for i in range(60) %}{% set n.t = n.t + n.t %}"
            "{% endfor %}{{ n.t | length }}",
            "MiB",
        ),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
        # One operation each, within which no line is counted.
        ("{{ ('x' * 90000 * 90000) | length }}", "MiB"),
        ("{{ ('x' * ('9999999999' | int)) | length }}", "MiB"),
        ("{{ '%9999999999s' % 'x' }}", "MiB"),
        ("{{ '{:>9999999999}'.format('x') }}", "MiB"),
        ("{% set a = 'x' | center(90000) %}{{ a | replace(' ', a) | length }}", "MiB"),
        ("{% if tools %}{{ 'x' * ('9999999999' | int) }}{% endif %}", "MiB"),
        # Loops in functions that a template calls.
        ("{{ lipsum(90000) }}", f"more than {MAX_LINES} lines"),
        ("{{ range(90000) | slice(90000) | list | length }}", f"more than {MAX_LINES} lines"),
        ("{% if tools %}" + LOOPS + "{% endif %}", f"more than {MAX_LINES} lines"),
    ],
)
def test_template_that_exhausts_the_machine_is_refused_in_a_sentence(bomb: str, problem: str):
    with pytest.raises(ConfigError, match="give the tokenizer another chat_template") as refusal:
        probe(bomb + PLAIN)
    assert problem in str(refusal.value)


def test_limit_of_memory_ends_with_the_probes():
    before = resource.getrlimit(resource.RLIMIT_AS)
    probe(PLAIN)
    with pytest.raises(ConfigError, match="MiB"):
        probe("{{ 'x' * ('9999999999' | int) }}" + PLAIN)
    assert resource.getrlimit(resource.RLIMIT_AS) == before


@pytest.mark.parametrize("style", STYLES)
def test_templates_of_published_models_are_accepted(style: str):
    tokenizer = tokenizer_of(style)
    source = tokenizer.chat_template or FALLBACK_TEMPLATE
    assert isinstance(source, str)
    assert ChatTemplate(tokenizer, source, SpecialTokens(tokenizer, source)).end_of_turn

"""The Python half of template.c: Jinja2 set up as the authors of chat templates run it.

Runs inside the tokenizer, once, before its sandbox closes; afterwards nothing can be imported. template.c
puts `PYTHON_PATH` and `mark` (marks.h as a function of a string and a truth value) into this module's
globals, and calls `compile_template` and `render`.

Differences from the authors' environment, all of them refusals: filters that take quadratic time in C
(urlize, striptags, wordwrap) or are not a function of the messages (random, lipsum) do not exist, and
arithmetic on integers of more than 65536 bits raises OverflowError.
"""
import datetime
import json
import math
import sys
import time  # noqa: F401  strftime imports it

sys.path.append(PYTHON_PATH)  # noqa: F821

import jinja2
import jinja2.ext
import jinja2.sandbox

INT_BITS_MAX = 65536
ROUND_MAX = 400


class Input(Exception):
    """The client's messages, tools or kwargs are wrong."""


class Stop(BaseException):
    """Raised by template.c when a limit is reached; a BaseException so that nothing here catches it."""


class Raised(jinja2.exceptions.TemplateError):
    """The template called raise_exception."""


class Generation(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %}: marks text for training; renders its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "%", "**"])

    def call_binop(self, context, operator, left, right):
        if isinstance(left, int) and isinstance(right, int):
            bits = max(left.bit_length(), right.bit_length())
            if operator == "**" and right > 0:
                bits = left.bit_length() * right
            if bits > INT_BITS_MAX:
                raise OverflowError("integer too large")
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj, attr, value):
        # (1).from_bytes makes integers without arithmetic; no template needs methods of numbers or bytes.
        if isinstance(obj, (int, float, complex, bytes, bytearray)):
            return False
        # Debian's 3.1.2 takes these for harmless; they change a list.
        if isinstance(obj, list) and attr in ("pop", "clear"):
            return False
        return super().is_safe_attribute(obj, attr, value)


def raise_exception(message):
    raise Raised(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    text = json.dumps(x, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    if not ensure_ascii:
        return text
    # Escaped by hand, so that a mark stays one character.
    return "".join(c if c < "\x80" or "\ufdd0" <= c <= "\ufdef" else json.dumps(c)[1:-1] for c in text)


def bounded_round(value, precision=0, method="common"):
    if not -ROUND_MAX <= precision <= ROUND_MAX:
        raise OverflowError("round: precision too large")
    return jinja2.filters.do_round(value, precision, method)


def environment():
    env = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    for name in "urlize", "striptags", "wordwrap", "random":
        del env.filters[name]
    del env.globals["lipsum"]
    env.filters["tojson"] = tojson
    env.filters["round"] = bounded_round
    env.globals["raise_exception"] = raise_exception
    return env


def no_constant(name):
    raise ValueError(f"{name} is not JSON")


def finite(text):
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is out of range")
    return value


def unique(pairs):
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return out


def parse(text, what, kind):
    try:
        value = json.loads(text.decode(), object_pairs_hook=unique, parse_float=finite, parse_constant=no_constant)
    except (ValueError, RecursionError) as e:
        raise Input(f"{what}: {e}") from None
    if not isinstance(value, kind):
        raise Input(f"{what} must be a JSON {'array' if kind is list else 'object'}")
    return value


def flatten(messages):
    for n, m in enumerate(messages):
        content = m.get("content", "")
        if content is None:
            m["content"] = ""
        elif isinstance(content, list):
            for part in content:
                if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                    raise Input(f"messages[{n}].content: only parts of type text are supported")
            m["content"] = "\n".join(part["text"] for part in content)
        elif not isinstance(content, str):
            raise Input(f"messages[{n}].content must be a string, null or an array of text parts")


def marked(value, every):
    if isinstance(value, str):
        return mark(value, every)  # noqa: F821
    if isinstance(value, list):
        return [marked(v, every) for v in value]
    if isinstance(value, dict):
        return {mark(k, every): marked(v, every) for k, v in value.items()}  # noqa: F821
    return value


def compile_template(source, tokens):
    return environment().from_string(source.decode()), {k: v.decode(errors="replace") for k, v in tokens.items()}


def render(compiled, messages, tools, kwargs, add_generation_prompt, flat, now_s):
    """The text with control tokens marked, and with everything marked if that can differ, else None."""
    template, tokens = compiled
    messages = parse(messages, "messages", list)
    if not all(isinstance(m, dict) for m in messages):
        raise Input("messages must be an array of objects")
    if flat:
        flatten(messages)
    given = {} if kwargs is None else parse(kwargs, "chat_template_kwargs", dict)
    for name in "messages", "add_generation_prompt", "raise_exception", "strftime_now":
        if name in given:
            raise Input(f"chat_template_kwargs: {name} cannot be set")
    given["messages"] = messages
    if tools is not None:
        given["tools"] = parse(tools, "tools", list)
    clock = datetime.datetime.fromtimestamp(now_s, datetime.timezone.utc).replace(tzinfo=None)
    trusted = {"add_generation_prompt": add_generation_prompt, "strftime_now": clock.strftime}
    try:
        some, every = marked(given, False), marked(given, True)
    except (RecursionError, UnicodeEncodeError) as e:
        raise Input(f"messages: {e}") from None
    text = template.render(tokens | some | trusted).encode()
    if some == every:
        return text, None
    try:
        return text, template.render(tokens | every | trusted).encode()
    except jinja2.exceptions.TemplateError:
        raise
    except Exception as e:
        raise Input(f"the template cannot render these messages safely: {e}") from None


def warm_up():
    """Use once what loads something when first used."""
    env = environment()
    text = (
        "{{ [1, '\u00e9'] | tojson(indent=1) }}{{ 1.5 | round(1) }}{% macro m() %}{{ caller() }}{% endmacro %}"
        "{% call m() %}x{% endcall %}{{ strftime_now('%A %c %j') }}{{ 'a' | title | escape | indent }}{{ u }}"
    )
    env.from_string(text).render(strftime_now=datetime.datetime(2026, 1, 1).strftime)
    for broken in "{% if %}", "{{ u.v }}", "{{ ''.format.__class__ }}", "{{ raise_exception('x') }}", "{{ 'a'|nosuch }}":
        try:
            env.from_string(broken).render()
        except jinja2.exceptions.TemplateError as e:
            str(e)


warm_up()
# From here on an import fails by itself instead of asking for files that the sandbox refuses.
sys.meta_path.clear()
sys.path_hooks.clear()
sys.path.clear()

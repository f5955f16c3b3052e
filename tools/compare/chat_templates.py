#!/usr/bin/env python3
"""Writes what transformers makes of chat templates: of those in tests/trainer/chat_templates, which are written after
published ones, with several conversations, and of small pieces of templates. The tests hold Weft's interpreter against it.

    tools/compare/chat_templates.py > tests/trainer/chat_templates_golden.jsonl

The first line has the variables of the pieces, and conversations. Another has `template` for a piece, or `file` and
`conversation` with `prompt`; and `text` or `error`, with `spans` in bytes where {% generation %} is.
Needs transformers and jinja2; transformers 5.24 with jinja2 3.1.6 wrote the file that is there.
"""
import datetime
import json
import pathlib
import sys

from transformers.utils import chat_template_utils

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests/trainer/chat_templates"
TIME = datetime.datetime(2024, 7, 26, 12)  # of strftime_now; the tests give the interpreter the same day


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return TIME


SYSTEM = {"role": "system", "content": "Weave. /no_think "}
ASKED = {"role": "user", "content": " Warp?\n"}
SAID = {"role": "assistant", "content": "\n\nWeft.\n"}
AGAIN = {"role": "user", "content": "Ünd <b>\"loom\"</b>\u00a0織機\u3000"}
THOUGHT = {"role": "assistant", "content": "<think>\nthreads\n</think>\n\nA loom weaves."}
CALLED = {"role": "assistant", "content": "", "tool_calls": [
    {"id": "abcdefghi", "type": "function", "function": {"name": "count", "arguments": {"z": [1, 2.5, None], "a": "é\n"}}}]}
ANSWERED = {"role": "tool", "content": "3"}
CONVERSATIONS = [
    [ASKED, SAID],
    [SYSTEM, ASKED, SAID],
    [SYSTEM, ASKED, SAID, AGAIN, THOUGHT],
    [ASKED, THOUGHT, AGAIN, SAID, ASKED, SAID],
    [SYSTEM, ASKED],
    [ASKED, ASKED],
    [SAID],
    [SYSTEM, ASKED, CALLED, ANSWERED, SAID],
    [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}],
]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

# Pieces of templates, with the variables that they use.
VARIABLES = {
    "text": "Weft and warp", "wide": "añ織\u3000", "spaces": " \t\n a b \u00a0\n", "empty": "", "none": None, "yes": True,
    "no": False, "three": 3, "minus": -3, "half": 2.5, "one": 1.0, "list": [1, 2, 3], "nothing": [], "words": ["a", "b", "c"],
    "dict": {"b": 1, "a": [True, None, "x\"\u007f/"], "items": 5}, "people": [{"role": "user", "n": 1}, {"role": "tool", "n": 2},
                                                                           {"n": 3}],
    "floats": [1735689600123456.0, 1e15, 1000000000000000.125, -9999999999999998.0, 1e16, 1.5e-4, 1e-4, 9.5e-5, 1e-5, -1.5e300,
               5e-324, 0.1, -0.0, 123456789012345680.0, 86442447016390.38],
    "calls": [{"f": {"name": "a", "0": "zero"}, "l": ["x", {"n": 1}]}, {"f": {"name": " b "}, "l": []}],
}
PIECES = """
{{ 1 + 2 * 3 - 4 }}
{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ minus % 2 }}
{{ -three }} {{ -(1 + 2) }} {{ 2 - -1 }}
{{ half }} {{ one }} {{ three }} {{ yes }} {{ none }}
{{ 1 ~ 'a' ~ none ~ yes ~ missing ~ half }}
{{ 'a' + 'b' ~ 1 + '2' }}
{{ 'a' 'b' "c" }}
{{ "it's" + 'a "quote"' + 'a\\tb\\n\\\\' }}
{{ 1 < 2 }} {{ 2 <= 2 }} {{ 'a' > 'b' }} {{ 'é' >= 'e' }} {{ one == 1 }} {{ yes == 1 }} {{ 0 == no }}
{{ three == 3 and text != 'x' or missing }}
{{ missing or 'other' }} {{ empty and 1 }}|{{ 0 or nothing or 'end' }}
{{ not yes }} {{ not missing }} {{ not 1 == 2 }}
{{ 'ef' in text }} {{ 'x' not in text }} {{ 2 in list }} {{ 'b' in dict }} {{ 'x' in missing }} {{ not 2 in list }}
{{ 'a' if yes else 'b' }} {{ 'a' if no else 'b' }} [{{ 'a' if no }}] {{ 'a' if no else 'b' if no else 'c' }}
{{ missing.x if missing is defined else 'safe' }}
{{ (1 if yes else 2) + 1 }} {{ [1 if no else 2][0] }}
{{ text[0] }} {{ text[-1] }} {{ wide[1] }} {{ wide[2] }} [{{ text[99] }}] {{ list[-1] }} [{{ list[7] }}] {{ 'abc'[1] }}
{{ text[5:] }} {{ text[:4] }} {{ text[2:-3] }} {{ text[::-1] }} {{ wide[:3] }} {{ text[-100:3] }} {{ text[3:1] }}|
{{ list[1:] | tojson }} {{ list[::-1] | tojson }} {{ list[:-1] | tojson }} {{ list[5:] | tojson }} {{ list[2::-1] | tojson }}
{{ dict.b }} {{ dict['a'] | tojson }} [{{ dict.missing }}] {{ dict['items'] }} {{ dict.get('b') }} {{ dict.get('z', 4) }} {{ dict.get('z') }}
{{ people[0].role }} {{ people[1]['n'] + 1 }} {{ people[-1].role is defined }}
{{ dict | tojson }} {{ none | tojson }} {{ text | tojson }} {{ wide | tojson }} {{ half | tojson }} {{ [] | tojson }} {{ {} | tojson }}
{{ {'a': 1, 'b': [2, {'c': none}]} | tojson }}
{{ {'a': {'b': {'c': 1}}}.a.b.c }}{{ {} | length }}
{{ text | length }} {{ wide | length }} {{ list | count }} {{ dict | length }} {{ missing | length }}
{{ text | upper }} {{ text | lower }} {{ 'aB c-d' | capitalize }} {{ 'it\\'s a-b (c' | title }}
{{ text.upper() }} {{ text.lower() }} {{ 'aB'.capitalize() }}
[{{ spaces | trim }}] [{{ spaces.strip() }}] [{{ spaces.lstrip() }}] [{{ spaces.rstrip() }}] [{{ '--a-'.strip('-') }}] [{{ 'xxax' | trim('x') }}]
[{{ '\\n\\na\\n'.lstrip('\\n') }}] [{{ 'aaa'.strip('a') }}] [{{ '' | trim }}] [{{ 'abc'.rstrip('c').lstrip('a') }}]
{{ 'a,b,,c'.split(',') | tojson }} {{ 'a--b'.split('--')[-1] }} {{ 'a,b,c'.split(',', 1) | tojson }} {{ ''.split(',') | tojson }}
{{ spaces.split() | tojson }} {{ 'a  b\tc '.split(none, 1) | tojson }} {{ ' a b'.split(maxsplit=0) | tojson }} {{ ''.split() | tojson }} {{ wide.split() | tojson }}
{{ text | replace('a', 'AA') }} {{ text.replace('e', '') }} {{ 'aaa' | replace('a', 'b', 2) }} {{ 'aaa'.replace('aa', 'b') }}
{{ text.startswith('We') }} {{ text.endswith('x') }} {{ ''.startswith('') }}
{{ words | join }} {{ words | join(', ') }} {{ ', '.join(words) }} {{ list | join('-') }} {{ 'abc' | join('.') }}
{{ missing | default('d') }} {{ empty | default('d') }} {{ empty | default('d', true) }} {{ none | d('d') }} [{{ missing | default }}] {{ empty | default('k', boolean=true) }}
{{ words | first }} {{ words | last }} {{ text | first }} {{ nothing | first is defined }}
{{ words | reverse | join }} {{ 'abc' | reverse }} {{ dict | list | tojson }} {{ 'ab' | list | tojson }}
{{ people | selectattr('role', 'equalto', 'tool') | list | tojson }} {{ people | selectattr('role', 'defined') | list | length }}
{{ people | rejectattr('role', '==', 'user') | map(attribute='n') | join(',') }} {{ list | select('odd') | list | tojson }} {{ list | reject('in', [1]) | list | tojson }}
{{ people | selectattr('role') | map(attribute='role') | join('+') }} {{ [0, 1, ''] | select | list | tojson }}
{{ three is odd }} {{ three is even }} {{ three is number }} {{ half is float }} {{ three is integer }} {{ yes is integer }} {{ yes is boolean }} {{ yes is true }} {{ no is false }} {{ 1 is true }}
{{ text is string }} {{ dict is mapping }} {{ list is sequence }} {{ text is iterable }} {{ none is none }} {{ missing is undefined }} {{ none is defined }} {{ 3 is iterable }}
{{ three is not none and text is not mapping }} {{ three is eq 3 }} {{ three is ne 3 }} {{ three is in [3] }} {{ text is not string or yes }}
{{ raise_exception is defined }} {{ strftime_now is defined }} {{ namespace is undefined }} {{ loop is defined }}
{{ strftime_now('%d %b %Y') }} {{ strftime_now("%Y-%m-%d") }}
{% for x in list %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }} {% endfor %}
{% for x in words %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }}{{ loop.nextitem is defined }} {% endfor %}
{% for x in nothing %}a{% else %}none{% endfor %} {% for x in missing %}a{% else %}none{% endfor %} {% for x in list %}a{% else %}none{% endfor %}
{% for x in list if x != 2 %}{{ loop.index }}:{{ x }}/{{ loop.length }} {% else %}none{% endfor %}{% for x in list if x > 5 %}{% else %}none{% endfor %}
{% for k, v in dict.items() %}{{ k }}={{ v | tojson }};{% endfor %}{% for k in dict %}{{ k }}{% endfor %}{% for k, v in dict | items %}{{ k }}{% endfor %}{% for v in dict.values() %}{{ v | tojson }}{% endfor %}
{% for c in wide %}<{{ c }}>{% endfor %}{% for k in dict.keys() %}{{ k }}{% endfor %}
{% for x in list %}{% for y in words %}{{ loop.index }}{{ y }}{% endfor %}{{ loop.index }} {% endfor %}
{% for x in list %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %} {% for x in list %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% for x in list %}{% if x == 1 %}{% continue %}{% for y in words %}{{ y }}{% endfor %}{% endif %}{% for y in words %}{% break %}{{ y }}{% else %}n{% endfor %}{{ x }}{% endfor %}
{% for x in list %}{% break %}{% for y in words %}{{ y }}{% endfor %}{{ x }}{% endfor %}end
{% if no %}a{% elif three == 3 %}b{% else %}c{% endif %}{% if no %}a{% elif no %}b{% else %}c{% endif %}{% if yes %}{% if no %}{% else %}d{% endif %}{% endif %}
{% set x = 1 %}{% for y in list %}{{ x }}{% set x = x + y %}{{ x }} {% endfor %}{{ x }}{% if yes %}{% set x = 9 %}{% endif %}{{ x }}
{% set ns = namespace(n=0, t='') %}{% for y in list %}{% set ns.n = ns.n + y %}{% set ns.t = ns.t ~ y %}{% endfor %}{{ ns.n }} {{ ns.t }} {{ ns.missing is defined }}
{% set ns = namespace() %}{% set ns.items = 4 %}{{ ns.items }}
{% set x %}a{{ three }}{% set inner = 5 %}b{% endset %}{{ x }}{{ x | length }}{{ inner is defined }}
{% macro m(a, b='B', c=a) %}[{{ a }}|{{ b }}|{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 2, 3) }}{{ m(b=4, a=5) }}{{ m(missing) }}{{ m('x', missing) | upper }}
{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}{% set g = 7 %}{% macro h() %}{{ g }}{% for x in words %}{{ x }}{% endfor %}{% endmacro %}{% for g in list %}{{ h() }}{% endfor %}
{% macro m(x) %}{% for y in list %}{% if y == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}{% endmacro %}{% for x in words %}{{ m(x) }}{{ loop.index }}{% endfor %}
{# a comment {{ 1 }} #}a{#- b -#} c {#+ d +#} e
a {%- if yes %} b {%- endif %} c {{- 1 }} d {{ 2 -}} e
{% if yes -%} a {%- endif -%} b {% if yes +%} c{% endif %} {{- 'x' -}} d
{{ [1, 2,] | tojson }} {{ {'a': 1,} | tojson }} {{ (three) }} {{ [[1], [2, 3]][1][0] }} {{ {'}}': '%}'}['}}'] }}
{{ (list + [4]) | tojson }} {{ [1] == [1] }} {{ {'a': 1} == {'a': 1} }} {{ none == none }} {{ missing == other }}
{{ words | map('upper') | join(',') }} {{ [' a ', 'b'] | map('trim') | list | tojson }} {{ words | map('replace', 'a', 'x') | join }} {{ ['', 'a'] | map('default', 'x', boolean=true) | join }}
{{ [words, list] | map('join', '-') | join(',') }} {{ [words] | map('length') | first }} {{ 'ab' | map('upper') | join }} {{ missing | map('trim') | list | length }} {{ list | map('string') | list | tojson }}
{{ calls | map(attribute='f.name') | join }} {{ calls | map(attribute='l.0') | first }} {{ calls[:1] | map(attribute='l.1.n') | first }} {{ calls | map(attribute='l.00') | first }} {{ calls | map(attribute='f.0') | map('default', 'none') | first }}
{{ people | map(attribute='role', default='none') | join(',') }} {{ calls | map(attribute='x.y', default='d') | join }} {{ calls | map(attribute='l.99999999999999999999', default='d') | join }} {{ people | map(attribute='role', default=none) | join(',') }}
{{ calls | selectattr('f.name', 'equalto', 'a') | list | length }} {{ calls | rejectattr('f.name', 'equalto', 'a') | map(attribute='f.name') | first }} {{ calls | selectattr('l.1') | list | length }}
{{ 'yes' if people | selectattr('role', 'equalto', 'system') else 'no' }} {{ 'yes' if people | selectattr('role', 'equalto', 'system') | list else 'no' }} {{ 'yes' if nothing | reverse else 'no' }} {{ 'yes' if missing | map('trim') else 'no' }} {{ 'yes' if {} | items }}
{{ words | map('upper') | first }} {{ words | reverse | first }} {{ words | map('upper') | reverse | length }} {{ words | reverse | reverse | last }} {{ people | selectattr('role') | reverse | map(attribute='role') | join }}
{{ 'a' in words | map('trim') }} {{ 'x' in words | reverse }} {{ words == words | reverse }} {{ words | select is iterable }} {{ words | select is sequence }} {{ words | reverse is string }} {{ words | reverse is defined }} {{ words | select is mapping }}
{% for m in people | selectattr('role') %}{{ m.role }}{{ loop.index }}{{ loop.last }}{% endfor %}{% for m in people | reverse if m.role %}{{ m.n }}{% endfor %}{% set a = words | select %}{% if a %}{{ a | join }}{% endif %}{% for k, v in dict | items | reverse %}{{ k }}{% endfor %}
{{ dict.items() | length }} {{ 'yes' if dict.items() }}{{ 'yes' if {}.items() else 'no' }} {{ dict.keys() | last }} {{ dict.keys() | first }} {{ dict.keys() | reverse | join }} {{ 'b' in dict.keys() }} {{ dict.keys() is sequence }} {{ dict.values() is iterable }} {{ [] == dict.keys() }}
{% set k = dict.keys() %}{{ k | join }}{{ k | join }}{{ k | list | tojson }} {{ dict.items() | list | tojson }} {{ dict | items | first | tojson }} {{ dict | first }} {{ dict | last }} {{ missing | first }} {{ missing | last }} {{ {} | first is defined }}
{{ list.append is defined }} {{ text.content is defined }} {{ dict.get('keys') }} {{ dict.get('keys', 3) }} {{ 1 in dict }} {{ none in dict }} {{ missing in dict }} {{ [] in [[]] }} {{ 1 | safe is string }}
{% for x in floats %}{{ x }} {{ x | tojson }} {% endfor %}{{ floats | tojson }}
{{ 3 * 4 }} {{ 'x' if 'a' in 'abc' and not no else 'y' }} {{ 10 - 2 - 3 }} {{ 2 * 3 % 4 }}
{{ text.foo is defined }} {{ list.foo is defined }} {{ three.foo is defined }} {{ none.foo is defined }} {{ dict[1] is defined }}
{% generation %}a{{ three }}{% endgeneration %}{{ wide }}{% for x in words %}{% generation %}{{ wide }}{% set y = 3 %}{% endgeneration %}{{ y is defined }}{% endfor %}
""".strip("\n").split("\n")
# With ends of lines, which stand as \\n here.
LINED = """
a\\n{% if yes %}\\n  b\\n{% endif %}\\nc\\n
  {% if yes %}\\n  {{ three }}\\n  {% endif %}  \\n x {% if yes %}\\ny{% endif %}
a\\r\\nb\\rc\\n\\n
{% for x in list %}\\n    {{ x }}\\n    {%- if not loop.last %},{% endif +%}\\n{% endfor %}\\n
{# c #}\\n  {# d #}  \\n e {# f -#} \\n g
a\\n  {%+ if yes %}\\n b{% endif %}\\n   {%- set x = 1 -%}   \\n\\n c
\\t{% set x = 1 %}\\n\\u00a0{% set y = 2 %}\\nz
{{ three }}\\n{{ three -}}\\n  \\n x\\n{%- if yes -%}\\n y \\n{%- endif -%}\\n
{% if yes %}{# a #}\\n{% endif %}\\n\\n{{ 'a\\nb' }}
a {%\\nif\\nyes\\n%}b{{\\n1\\n}}{% endif %}
""".strip("\n").split("\n")
# Jinja refuses them, or Weft does; both name a reason.
REFUSED = """
{{ missing.x }}
{{ missing['x'] }}
{{ missing.x.y if yes }}
{{ none + 1 }}
{{ 'a' + 1 }}
{{ 1 < 'a' }}
{{ 1 // 0 }}
{{ raise_exception('told') }}
{{ text.nosuch() }}
{{ text | nosuch }}
{{ text is nosuch }}
{{ nosuch(1) }}
{% if yes %}
{% endif %}
{% for x in list %}{% endif %}
{% nosuch %}
{{ 1 + }}
{{ (1 }}
{{ 'a }}
{{ 1 }
{% set x 1 %}
{# never
{{ a b }}
{% break %}
{% set text.x = 1 %}
{{ list.append(4) }}
{{ text | trim(1, 2, 3) }}
{{ text | trim(no=1) }}
{% for a, b in list %}{% endfor %}
{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}
{{ 3 | length }}
{% for x in 3 %}{% endfor %}
{{ missing | tojson }}
{{ [1, 2 }}
{{ {1: 2 }}
{{ 1 ! 2 }}
{{ text[1:2:3:4] }}
{% else %}
{{ }}
{{ text | }}
{{ f(a=1, 2) }}
{% for x in list %}{% generation %}{% break %}{% endgeneration %}{% endfor %}
{{ dict.b.c.d }}
{{ words | map() | list }}
{{ people | map('role') | list }}
{{ people | map(attribute='role', other=1) | list }}
{{ people | map(attribute='x.y') | list }}
{{ words | map('upper', attribute='x') | list }}
{{ people | selectattr(attribute='role') | list }}
{{ list | select('odd', x=1) | list }}
{{ words | select | length }}
{{ words | reverse | length }}
{{ words | select | last }}
{{ words | reverse | tojson }}
{{ (words | reverse) + words }}
{{ (words | map('trim'))[1:] }}
{{ (people | reverse)[0].role }}
{{ dict | items | length }}
{{ dict.keys() | tojson }}
{{ dict.keys() + [1] }}
{{ [1] in dict.keys() }}
{{ dict.get([1]) }}
{{ [1] in dict }}
{{ {} not in dict }}
{{ none | first }}
{{ three | first }}
{{ three | last }}
{% macro r() %}{{ r() }}{% endmacro %}{{ r() }}
""".strip("\n").split("\n")


def rendered(template, variables):
    """The text, and the spans of {% generation %} in bytes."""
    compiled = chat_template_utils._compile_jinja_template(template)
    if "endgeneration" not in template:
        return compiled.render(**variables), None
    text, spans = chat_template_utils._render_with_assistant_indices(compiled, **{"messages": None, "tools": None,
                                                                                  "documents": None,
                                                                                  "add_generation_prompt": False} | variables)
    return text, [[len(text[:end].encode()) for end in span] for span in spans]


def case(head, template, variables):
    try:
        text, spans = rendered(template, variables)
        result = {"text": text} | ({} if spans is None else {"spans": spans})
    except Exception as error:  # of many kinds, from jinja2 and from Python
        result = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(head | result, ensure_ascii=False))
    return result


def main():
    chat_template_utils.datetime = Clock
    conversations = [TOKENS | {"messages": messages, "tools": None, "documents": None} for messages in CONVERSATIONS]
    print(json.dumps({"pieces": VARIABLES, "conversations": conversations}, ensure_ascii=False))
    for path in sorted(FOLDER.glob("*.jinja")):
        for number, variables in enumerate(conversations):
            for prompt in (False, True):
                case({"file": path.name, "conversation": number, "prompt": prompt}, path.read_text(encoding="utf-8"),
                     variables | {"add_generation_prompt": prompt})
    lined = [json.loads(f'"{piece}"') if '"' not in piece else piece for piece in LINED]
    for piece in PIECES + lined + REFUSED:
        if ("error" in case({"template": piece}, piece, VARIABLES)) != (piece in REFUSED):
            sys.exit(f"jinja2 says something else of {piece}")


if __name__ == "__main__":
    main()

"""Texts that are shortened, masked, and read in linear time."""

from __future__ import annotations

import ast
import importlib
import json
import re
import re._constants as op  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
import string
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from airflow.sdk._shared.secrets_masker import mask_secret as add_mask
from hypothesis import given
from hypothesis import strategies as st

import airflow_provider_gangjobs
from airflow_provider_gangjobs.airflow_api import task_log
from airflow_provider_gangjobs.exceptions import InvalidGangSpec
from airflow_provider_gangjobs.gang.checkup import parse_go_duration
from airflow_provider_gangjobs.gang.identity import GangRef
from airflow_provider_gangjobs.gang.outcome.event import (
    MESSAGE_CHARACTERS_MAX,
    RANK_MESSAGE_CHARACTERS_MAX,
    build_event,
)
from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome, OutcomeKind
from airflow_provider_gangjobs.gang.render.user_manifest import parse_manifest
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.state.phase import Phase, Status
from airflow_provider_gangjobs.gang.state.waiting import read_queue_refusal, summarize_refusal
from airflow_provider_gangjobs.gang.validation.validate import require_valid
from airflow_provider_gangjobs.kube import names, quantity, text
from airflow_provider_gangjobs.kube.text import cut_end, keep_end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# -- Shortened texts keep whole words or lines, and say by an ellipsis that something is missing ---------------------

RUNC = "OCI runtime create failed: runc create failed: unable to start container process"


@pytest.mark.parametrize(
    ("text", "characters_max", "shown"),
    [
        pytest.param("short", 5, "short", id="fits"),
        pytest.param(RUNC, 58, "...runc create failed: unable to start container process", id="word"),
        pytest.param("one two", 6, "...two", id="word that just fits"),
        pytest.param("step 1\nstep 2\nValueError: no", 26, "...\nstep 2\nValueError: no", id="line"),
        pytest.param(f"{'a b ' * 50}\nlast", 23, "...b a b a b a b \nlast", id="most of the text is one line"),
        pytest.param("x" * 200, 103, f"...{'x' * 100}", id="no white space"),
    ],
)
def test_end_of_a_text_begins_with_a_whole_line_or_word(text: str, characters_max: int, shown: str) -> None:
    assert keep_end(text, characters_max) == shown


@pytest.mark.parametrize(
    ("text", "characters_max", "shown"),
    [
        pytest.param("short", 5, "short", id="fits"),
        pytest.param("one two three", 12, "one two...", id="word"),
        pytest.param("one two three", 10, "one two...", id="word that just fits"),
        pytest.param("x" * 200, 103, f"{'x' * 100}...", id="no white space"),
    ],
)
def test_beginning_of_a_text_ends_with_a_whole_word(text: str, characters_max: int, shown: str) -> None:
    assert cut_end(text, characters_max) == shown


@given(st.text(alphabet="ab \n", max_size=300), st.integers(20, 300))
def test_shortened_text_is_within_its_limit_and_part_of_the_text(text: str, characters_max: int) -> None:
    beginning, end = cut_end(text, characters_max), keep_end(text, characters_max)
    assert max(len(beginning), len(end)) <= characters_max + 1
    assert text.startswith(beginning.removesuffix("..."))
    assert text.endswith(end.removeprefix("...").removeprefix("\n"))


# -- Secrets are masked in the texts of an event before the texts are cut --------------------------------------------

SECRET = "dIrViNzKyOpQaRsT"
PART = 4
"""This many consecutive characters of a secret count as a part of the secret."""
REF = GangRef("default", "train", "u")


@pytest.fixture(autouse=True)
def known_secret() -> None:
    """Airflow knows the secret."""
    add_mask(SECRET)


def has_part_of_secret(text: str) -> bool:
    return any(SECRET[at : at + PART] in text for at in range(len(SECRET) - PART + 1))


@pytest.mark.parametrize("before", range(PART, len(SECRET)))
def test_secret_across_the_limit_of_a_text_is_masked(before: int) -> None:
    """`before` characters of the secret are on the side of the limit that is kept."""
    head = "x" * (MESSAGE_CHARACTERS_MAX - 3 - before) + SECRET + "y" * 50
    tail = "x" * 50 + SECRET + "y" * (RANK_MESSAGE_CHARACTERS_MAX - 3 - before)
    failed = Outcome(uid="u", pod="p", outcome=OutcomeKind.FAILED, rank=0, exit_code=1, message=tail)
    event = build_event(REF, Status.FAILED, Phase.FAILED, message=head, notes=[head], outcomes=[failed])

    assert has_part_of_secret(json.dumps(event.to_payload()))
    assert not has_part_of_secret(json.dumps(task_log.mask_event(event).to_payload()))


def test_message_that_the_kubelet_cut_begins_with_a_whole_word() -> None:
    message = f"{SECRET[5:]} rest of the log"
    cut = Outcome(uid="u", pod="p", outcome=OutcomeKind.FAILED, rank=0, message=message, message_cut=True)

    (rank,) = build_event(REF, Status.FAILED, Phase.FAILED, outcomes=[cut]).ranks

    assert rank.message == "rest of the log"


# -- Time against length of what users and clusters write: no pattern and no parser needs quadratic time -------------

SHORT: Final = 500
TIMES: Final = 8
"""How much longer the long text is. A quadratic function then needs 64 times the time, and a linear one 8 times."""
RATIO_MAX: Final = 24
NOISE_S: Final = 0.004
METHODS: Final = "match|fullmatch|search|sub|split|findall"
ROOT: Final = Path(airflow_provider_gangjobs.__file__).parent


def is_slow(function: Callable[[str], object], make: Callable[[int], str]) -> bool:
    """Return whether the time of a function grows much faster than the length of its text."""
    long = best_of_3(function, make(SHORT * TIMES))
    return long > NOISE_S and long > RATIO_MAX * best_of_3(function, make(SHORT))


def best_of_3(function: Callable[[str], object], given: str) -> float:
    times = []
    for _ in range(3):
        began = time.process_time()
        function(given)
        times.append(time.process_time() - began)
        if times[-1] < NOISE_S:
            break
    return min(times)


# -- patterns --------------------------------------------------------------------------------------------------------


def uses() -> Iterator[tuple[str, re.Pattern[Any], str]]:
    """Yield each place where the package uses a pattern, with the pattern and the method."""
    for path in sorted(ROOT.rglob("*.py")):
        source = path.read_text()
        if not re.search(rf"\bre\.(compile|{METHODS})\(", source) or "container_programs" in path.parts:
            continue
        name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
        module = importlib.import_module(name)
        for constant, value in vars(module).items():
            for pattern in [value] if isinstance(value, re.Pattern) else patterns_in(value):
                used = re.findall(rf"\b{constant}\.({METHODS})\b", source) or ["search"]
                yield from ((f"{name}.{constant}", as_text(pattern), method) for method in sorted(set(used)))
        for call in ast.walk(ast.parse(source)):
            if isinstance(call, ast.Call) and re.fullmatch(rf"re\.({METHODS})", ast.unparse(call.func)):
                with_names = eval(compile(ast.Expression(call.args[0]), name, "eval"), vars(module) | {"pattern": ""})
                yield f"{name}:{call.lineno}", re.compile(with_names), ast.unparse(call.func)[3:]


def as_text(pattern: re.Pattern[Any]) -> re.Pattern[str]:
    given = pattern.pattern
    return re.compile(given.decode("latin-1")) if isinstance(given, bytes) else pattern


def patterns_in(value: object) -> list[re.Pattern[Any]]:
    """Return the patterns in a table of rules."""
    rows = value if isinstance(value, (list, tuple)) else ()
    return [each for row in rows if isinstance(row, tuple) for each in row if isinstance(each, re.Pattern)]


def repeated(items: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """Yield, for each part of a pattern that may repeat, a text that matches what is before it, and one of the part."""
    for kind, of in items:
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
            if of[1] > SHORT:
                yield before, sample(of[2])
            yield from repeated(of[2], before)
        elif kind is op.SUBPATTERN:
            yield from repeated(of[3], before)
        elif kind is op.BRANCH:
            for branch in of[1]:
                yield from repeated(branch, before)
        before += sample([(kind, of)])


def sample(items: Any) -> str:
    """Return a short text that a part of a pattern matches."""
    return "".join(sample_of(kind, of) for kind, of in items)


def sample_of(kind: Any, of: Any) -> str:
    if kind is op.LITERAL:
        return chr(of)
    if kind in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
        return sample(of[2]) * max(of[0], 1)
    if kind is op.SUBPATTERN:
        return sample(of[3])
    if kind is op.ATOMIC_GROUP:
        return sample(of)
    if kind is op.BRANCH:
        return sample(of[1][0])
    if kind in (op.ANY, op.NOT_LITERAL, op.IN):
        one = parser.SubPattern(parser.State(), [(kind, of)])
        compiled = re._compiler.compile(one, 0)  # type: ignore[attr-defined]
        return next((each for each in f"a1A x{string.printable}\x1b" if compiled.match(each)), "")
    return ""


def test_every_pattern_needs_linear_time() -> None:
    slow = set()
    for where, pattern, method in uses():
        call = getattr(pattern, method)
        match = partial(call, "") if method == "sub" else call
        parts = set(repeated(parser.parse(pattern.pattern, pattern.flags)))
        for before, part in parts | {("", part) for _, part in parts}:
            for end in ("", "\0", f"{part}\0", " \0"):
                if part and is_slow(match, lambda n: f"{before}{part * (n // len(part))}{end}"):  # noqa: B023
                    slow.add((where, method, before, part))
    assert not slow


# -- parsers ---------------------------------------------------------------------------------------------------------


def validate(**parameters: Any) -> None:
    with suppress(InvalidGangSpec):
        require_valid(GangSpec(**{"image": "i", **parameters}))


def parse_quantity(given: str) -> None:
    with suppress(ValueError):
        quantity.parse(given)


PARSERS: Final[dict[str, Callable[[str], object]]] = {
    "quantity": parse_quantity,
    "label selector": names.problem_with_label_selector,
    "label value": names.to_label_value,
    "name": names.problem_with_dns_subdomain,
    "resource": names.problem_with_qualified_name,
    "image": lambda given: validate(image=given),
    "resources": lambda given: validate(resources={"cpu": given, given: "1"}),
    "node selector": lambda given: validate(node_selector={given: given}),
    "checkpoints": lambda given: validate(checkpoints=given),
    "topology": lambda given: validate(topology=given),
    "manifest": lambda given: parse_manifest(f"a: {given}\n"),
    "duration": parse_go_duration,
    "message of the scheduler": summarize_refusal,
    "message of Kueue": lambda given: read_queue_refusal("", 8 * given),  # conditions have up to 32,768 characters
    "line": text.to_printable_line,
    "beginning": lambda given: text.cut_end(given, 1000),
    "end": lambda given: text.keep_end(given, 300),
}


TEXTS: Final = ("a", "1", "1.", " ", "a ", "-a", ".", "a,", "a/", "[", "\n", "\x1b[0m", "x in (", "untolerated taint ")
YAML_TEXTS: Final = ("1", "1:", "[", "{a: ", "- ")


@pytest.mark.parametrize("name", PARSERS)
def test_every_parser_needs_linear_time(name: str) -> None:
    texts = YAML_TEXTS if "manifest" in name else TEXTS
    slow = [
        (part, end)
        for part in texts
        for end in (("",) if "manifest" in name else ("", "!"))
        if is_slow(PARSERS[name], lambda n: part * (n // len(part)) + end)  # noqa: B023
    ]
    assert slow == []

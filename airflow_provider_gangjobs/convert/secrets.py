"""Which values of a file are secret.

The name of a variable, an option, or a field decides, and the form of the value. A value that refers to another one,
such as `$(TOKEN)`, is none.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_NAME: Final = re.compile(
    r"(?!.*(?:PAD|EOS|BOS|SEP|MASK|UNK|CLS|STOP|SPECIAL|IMAGE)_TOKEN_?\d{0,3}$)"  # of language models
    r"(?:.*PASSWORD|(?:.*_|PG)?(?:TOKEN|PASS|PASSWD|PWD|PW|PASSPHRASE|SECRET|CREDENTIALS?|CREDS|BEARER|AUTHORIZATION"
    r"|SIG|SIGNATURE|(?:BASIC|DOCKER|PROXY|REDISCLI|REGISTRY)_AUTH|(?:ADO|AZURE|DATABRICKS|GH|GITHUB|GITLAB)_PAT"
    r"|(?:API|ACCESS|ACCOUNT|SECRET|PRIVATE|AUTH|ENCRYPTION|SIGNING|FERNET|LICENSE|MASTER|STORAGE)_?KEY"
    r"|(?:ANTHROPIC|AZURE|DATADOG|GEMINI|HF|MISTRAL|OPENAI|STRIPE|WANDB)_KEY))(?:_BASE|_VALUE|_?\d{1,3})?"
)
"""Names whose values are secrets, as `variable_of` writes them."""
_COUNTED: Final = ("TOKEN", "PASS")
"""A number is no secret after a name of this end, such as `max_token`."""
_WORD: Final = r"(?P<name>[A-Za-z][\w.-]{0,63})"
_UNQUOTED: Final = r"(?P<value>[^\s\"'$/{<(`;|&)-][^\s\"';|&)]*)"
_ASSIGNED: Final = (
    r"(?P<value>(?![A-Za-z_]\w{0,63}[.(\[]|%[sdr(])[^\s\"'$/{<(`;|&)=-]"
    r"(?:[^\s\"';|&)(\[,]|,(?![\w.-]{1,64}=))*)"
)
"""An unquoted value that is no call, no attribute, and no format of a program. Another setting ends it."""
_OPTIONS: Final = r"(?:[^\n;|&]{0,256} )?"
_PROGRAMS: Final = (
    rf"(?:mysql|mariadb|7z)[\w-]{{0,64}} {_OPTIONS}-p",
    rf"(?:(?:docker|podman|helm registry|az|oc) login|mongo\w{{0,32}}) {_OPTIONS}-p ",
    rf"ldap\w{{1,32}} {_OPTIONS}-w ",
    rf"(?:un)?zip {_OPTIONS}-P ",
    r"aws configure set [\w.-]{0,64}(?:secret_access_key|session_token) ",
    rf"redis-cli {_OPTIONS}-a ",
    rf"openssl {_OPTIONS}-[kK] ",
    r"-pass(?:in|out)? [\"']?pass:",  # of openssl
    r"mc (?:alias set|config host add) (?:[^\s;|&-]\S{0,255} ){3}",
    r"sshpass -p ?",
    r"wandb login ",
    r"login \S{1,64} password ",  # of netrc
)
"""What stands before a password, for each program that gives its option no name or a short one."""
_PATTERNS: Final = (
    (re.compile(rf"(?<![\w-])--?{_WORD}[ =][\"']?{_UNQUOTED}"), ""),
    (re.compile(rf"(?<![\w$.{{-])(?P<name>[A-Z_][A-Z0-9_]{{0,63}})={_UNQUOTED}"), ""),
    (re.compile(rf"{_WORD}[\"'\]]{{0,2}}\s{{0,3}}[=:]\s{{0,3}}[\"'](?P<value>[^\s\"'$/{{<`-][^\"'\n]*)"), ""),
    (re.compile(rf"^\+{{0,2}}{_WORD}={_UNQUOTED}\Z"), ""),
    (re.compile(rf"(?:^|(?<=[;&?,=:\"'])|(?<=[^\s,(]\s))(?<!file[= ])[+_]{{0,2}}{_WORD}={_ASSIGNED}"), ""),
    (re.compile(rf"(?m:^)[ \t]{{0,64}}{_WORD}[ \t]{{0,64}}[=:][ \t]{{0,64}}{_ASSIGNED}[ \t\r]{{0,64}}(?m:$)"), ""),
    (re.compile(rf"[\"'](?!(?i:authorization):){_WORD}:[ ]{{1,3}}{_UNQUOTED}"), ""),
    (re.compile(rf"(?<!\w)(?:{'|'.join(_PROGRAMS)})[\"']?(?P<value>[^\s\"'$;|&-][^\s\"'$;|&]*)"), "PASSWORD"),
    (re.compile(r"\becho [\"']?(?P<value>[^\s\"'$]{1,256})[\"']? ?\|[^\n]{0,256} --password-stdin"), "PASSWORD"),
    (re.compile(r"://[^/\s:@]{0,256}:(?P<value>[^/\s@$]{1,256})@"), "PASSWORD"),
    (re.compile(r"\bjdbc:oracle:\w{1,16}:[^/\s:@]{1,256}/(?P<value>[^/\s@$]{1,256})@"), "PASSWORD"),
    (re.compile(r"https?://(?=[A-Za-z_-]{0,256}\d)(?P<value>[\w-]{16,256}):?@"), "ACCESS_TOKEN"),
    (re.compile(r"\"auth\"\s{0,3}:\s{0,3}\"(?P<value>[\w+/]{10,}={0,2})\""), "DOCKER_AUTH"),
    (re.compile(rf"(?<!\S)(?:-u|--user)[ =][\"']?[\w.@+-]{{1,64}}:{_UNQUOTED}"), "USER_PASS"),
    (re.compile(rf"(?i:authorization[\"']?:\s{{0,3}}[\"']?\w{{1,20}}) {_UNQUOTED}"), "AUTHORIZATION"),
    (
        re.compile(r"(?P<value>-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----[^-]*-----END [A-Z ]{0,20}PRIVATE KEY-----)"),
        "PRIVATE_KEY",
    ),
    (
        re.compile(
            r"(?<!\w)(?P<value>(?:hf_|gh[opsu]_|github_pat_|glpat-|xox[abprs]-|sk-|AKIA|AIza|nvapi-|npm_|pypi-)[\w-]{16,}"
            r"|hooks\.slack\.com/services/[\w/]+|(?<!-)eyJ[\w-]{5,}\.eyJ[\w-]{5,}\.[\w-]+)"  # the last is a JWT
        ),
        "ACCESS_TOKEN",
    ),
)
"""Where a secret may stand in a text, and the name of its variable if the text does not name it."""


def variable_of(name: str) -> str:
    """Return a name such as `apiKey` or `--api-key` as that of a variable."""
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name.rpartition("/")[2].strip("-"))
    return re.sub(r"\W", "_", words, flags=re.ASCII).upper()


def has_secret_value(name: str, value: str) -> bool:
    """Return whether the value of a name is neither empty, nor a reference, nor a number or a boolean of an option."""
    is_count = name.rstrip("_0123456789").endswith(_COUNTED) and re.fullmatch(r"[\d.]+", value)
    is_set = bool(value) and value.lower() not in ("true", "false", "yes", "no", "none", "null")
    return bool(_NAME.fullmatch(name)) and is_set and "$(" not in value and not is_count


def is_secret(name: str, value: str) -> bool:
    """Return whether the value of a variable or a field is secret, or has a secret in it."""
    return has_secret_value(variable_of(name), value) or without_secrets(value, str) != value


def without_secrets(text: str, reference: Callable[[str], str]) -> str:
    """Return a text in which each secret is replaced.

    :param reference: Returns what stands in place of a secret, by the name of its variable.
    """

    def replaced(given: str, found: re.Match[str]) -> str:
        name = given or variable_of(found["name"])
        if not has_secret_value(name, found["value"]):
            return found[0]
        begin, end = (place - found.start() for place in found.span("value"))
        return f"{found[0][:begin]}{reference(name)}{found[0][end:]}"

    for pattern, name in _PATTERNS:
        text = pattern.sub(partial(replaced, name), text)
    return text

"""Removes secrets from texts of other programs, such as the error output of an exec plugin.

A token may look like anything. So of the error output of a plugin, which handles tokens, only the words of a fixed list
are kept: no word of the list is a secret. `redacted` is for texts of the user and of this process.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

EVIDENCE_CHARACTERS_MAX = 256
_SECRET_CHARS_MIN = 6
"""Shorter texts (a group, "true") are not secrets and occur in ordinary sentences."""
_PUNCTUATION = "\"'`()[]<>,.:;!?"
_PUBLIC_FIELDS = frozenset(("command", "apiVersion", "tokenFile", "client-certificate", "client-key", "installHint"))
"""These fields help to find a fault and are not secret."""


def redacted(text: str, secrets: Iterable[str] = (), *, characters_max: int = EVIDENCE_CHARACTERS_MAX) -> str:
    """Return `text` without mappings, tokens, and the given secrets, cut to `characters_max`."""
    for secret in sorted((s for s in secrets if len(s) >= _SECRET_CHARS_MIN), key=len, reverse=True):
        text = text.replace(secret, "...")
    text = re.sub(r"\{.*\}", "{...}", text, flags=re.DOTALL)
    text = re.sub(r"\beyJ[\w.=-]+", "...", text)
    text = re.sub(r"(?i)\b(bearer|basic)\s+\S+", r"\1 ...", text)
    return " ".join(text.split())[:characters_max]


_ENGLISH = """
a about access account accounts after again allow allowed already an and any are argument arguments as assume at
attempt attempted attempts authenticate authenticated authentication authorization authorized bad be because been
before browser but by call called calling can cannot certificate certificates check client cluster code command
config configuration configure configured connect connection contact context correct could create credential
credentials current data deadline default denied did directory disabled do does domain due empty enable environment
error errors exceeded exception executable execute exist exists exit expected expire expired expires failed failure
fatal fetch field file find following for forbidden format found from get given grant group had handshake has have
header help host identity if in include included information initialize input install installed instance internal
interactive invalid is issue issuer it key kubeconfig limit load locate log logged login lookup make match may
message metadata method missing must name need network new no not object of on open operation or output parameter
parse password path peer perform permission permissions please plugin policy port principal process profile project
prompt provide provided provider proxy read received refresh refused region rejected remove renew request requested
require required requires reset resolve resource response retrieve retry return returned role run running scope
occurred secret security see server service session set setup sign signature sso start status stderr stdin stdout
string such supported temporary terminal that the there this time timed timeout tls to token tokens too tried try
trying type unable unauthorized unauthenticated unavailable unexpected unknown unreachable unsupported update url
usage use user username using valid validate value variable verification verify verifying version was were when
while with within without write wrong you your
"""
_PROGRAMS = """
assumerolewithwebidentity aws az azure azureclicredential azurecli gcloud getcallertoken gettoken gke
gke-gcloud-auth-plugin google http https kubectl kubelogin kubernetes linux oauth oauth2 oidc sts accessdenied
accessdeniedexception expiredtoken expiredtokenexception invalid_client invalid_grant invalid_request
invalidclienttokenid invalididentitytoken nocredentialproviders signaturedoesnotmatch throttling throttlingexception
unauthorizedexception unrecognizedclientexception filenotfounderror modulenotfounderror permissionerror valueerror
"""
"""Programs, and names of their errors."""
_HTTP_CODES = "400 401 403 404 407 408 429 500 502 503 504"
_KNOWN_WORDS = frozenset(f"{_ENGLISH} {_PROGRAMS} {_HTTP_CODES}".split())
"""The words of error messages. None of them is a secret."""


def known_words(text: str, secrets: Iterable[str] = ()) -> str:
    """Return the words of `text` that are no secret, with "..." for the others, cut to `EVIDENCE_CHARACTERS_MAX`.

    Return an empty text if no word is known.
    """
    kept: list[str] = []
    for word in redacted(text, secrets, characters_max=len(text)).split():
        is_known = word.strip(_PUNCTUATION).lower() in _KNOWN_WORDS
        if is_known or kept[-1:] != ["..."]:
            kept.append(word if is_known else "...")
    return " ".join(kept)[:EVIDENCE_CHARACTERS_MAX] if set(kept) != {"..."} else ""


def secrets_of(user: object) -> frozenset[str]:
    """Return every text of a user section that a message must not contain."""
    found: set[str] = set()
    pending, seen = [user], set()
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            found.add(value)
        # The aliases of YAML can refer to one mapping many times, and even to a mapping that contains the alias.
        elif isinstance(value, dict | list) and id(value) not in seen:
            seen.add(id(value))
            pending += value if isinstance(value, list) else [v for k, v in value.items() if k not in _PUBLIC_FIELDS]
    return frozenset(found)

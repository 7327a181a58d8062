"""Make the table of protobuf messages that the embedded API server can read.

    python scripts/make_messages.py path/swagger.json path/generated.proto... \
        > gangjobs_sandbox/api/messages.json

The `generated.proto` files are those of the published Go modules `k8s.io/api` and `k8s.io/apimachinery` (of the
groups that ROOTS name, meta/v1, resource and intstr); `swagger.json` is as for `make_fields.py`. kubectl sends
protobuf when it makes an object itself (`kubectl create namespace`), so only such messages are kept.

A message is a table from field number to `name:type`, with types as in `fields.json`. A name that begins with `*`
is a Go embedding: its fields are the message's own in JSON.
"""

import json
import re
import sys
from pathlib import Path

ROOTS = (
    "DeleteOptions",
    "authorization.v1.SelfSubjectAccessReview",
    "batch.v1.Job",
    "core.v1.Binding",
    "core.v1.ConfigMap",
    "core.v1.Event",
    "core.v1.Namespace",
    "core.v1.Pod",
    "core.v1.Secret",
    "core.v1.Service",
    "core.v1.ServiceAccount",
    "policy.v1.Eviction",
    "scheduling.v1.PriorityClass",
)
SCALARS = {
    "Quantity": "quantity",
    "Time": "time",
    "MicroTime": "microTime",
    "IntOrString": "intOrString",
    "FieldsV1": "any",
}
NUMBERS = {"int32", "int64", "bool", "string", "bytes"}
MESSAGE = re.compile(r"^message (\w+) \{(.*?)^\}", re.DOTALL | re.MULTILINE)
FIELD = re.compile(r"^  (?:optional |repeated |required )?(map<string, )?([\w.]+)>? (\w+) = (\d+);", re.MULTILINE)


def short(package: str, name: str) -> str:
    """`core.v1.Pod` of `.k8s.io.api.core.v1.Pod`; types of the API machinery by their last word."""
    if name in NUMBERS:
        return name
    full = name.removeprefix(".") if "." in name else f"{package}.{name}"
    kind = full.removeprefix("k8s.io.api.") if full.startswith("k8s.io.api.") else full.rpartition(".")[2]
    return SCALARS.get(kind, kind)


def messages_of(text: str) -> dict[str, list[tuple[int, str, str]]]:
    """Fields of each message: number, name, type."""
    package = re.search(r"^package ([\w.]+);", text, re.MULTILINE)[1]
    found = {}
    for message, body in MESSAGE.findall(text):
        rows = []
        for line in FIELD.finditer(body):
            mapped, kind, name, number = line.groups()
            kind = short(package, kind)
            prefix = "{}" if mapped else "[]" if line[0].startswith("  repeated") else ""
            rows.append((int(number), name, prefix + kind))
        found[short(package, message)] = rows
    return found


def main() -> None:
    swagger = json.loads(Path(sys.argv[1]).read_text())["definitions"]
    properties = {
        (name.removeprefix("io.k8s.api.") if name.startswith("io.k8s.api.") else name.rpartition(".")[2]): set(
            schema.get("properties", {})
        )
        for name, schema in swagger.items()
    }
    messages: dict[str, list[tuple[int, str, str]]] = {}
    for path in sys.argv[2:]:
        messages |= messages_of(Path(path).read_text())
    table: dict[str, dict[str, str]] = {}
    waiting = list(ROOTS)
    while waiting:
        name = waiting.pop()
        if name in table or name not in messages:
            continue
        row = table[name] = {}
        for number, field, kind in messages[name]:
            target = re.sub(r"^(\[\]|\{\})", "", kind)
            is_embedded = target in messages and name in properties and field not in properties[name]
            row[str(number)] = f"{'*' if is_embedded else ''}{field}:{kind}"
            waiting.append(target)
    rows = ",\n".join(f" {json.dumps(name)}: {json.dumps(fields)}" for name, fields in sorted(table.items()))
    print("{\n" + rows + "\n}")


if __name__ == "__main__":
    main()

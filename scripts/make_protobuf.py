"""Generate the table of protobuf fields of the embedded API server from the published `.proto` files.

    python -m scripts.make_protobuf path/of/k8s.io/api path/of/k8s.io/apimachinery > gangjobs_sandbox/api/protobuf.json

The Go modules `k8s.io/api` and `k8s.io/apimachinery` of the newest release contain the files `generated.proto`. The
table contains the types that `scripts.make_fields` reaches, except for those of the Workload API: for each number of a
field, its name and its type. A type is a scalar, the name of another type, `[]T` (repeated), `{}T` (a map), or `>T`
(embedded).
"""

import json
import re
import sys
from pathlib import Path

from scripts.make_fields import ROOTS

FIELDS = Path(__file__).parents[1] / "gangjobs_sandbox" / "registry" / "fields.json"
SCALARS = {
    "k8s.io.apimachinery.pkg.api.resource.Quantity": "quantity",
    "k8s.io.apimachinery.pkg.util.intstr.IntOrString": "intOrString",
    "k8s.io.apimachinery.pkg.apis.meta.v1.Time": "time",
    "k8s.io.apimachinery.pkg.apis.meta.v1.MicroTime": "microTime",
    "k8s.io.apimachinery.pkg.apis.meta.v1.FieldsV1": "any",
    "k8s.io.apimachinery.pkg.runtime.RawExtension": "any",
}
PLAIN = {"string", "bytes", "bool", "int32", "int64", "double"}
PACKAGE = re.compile(r"^package (\S+);", re.MULTILINE)
MESSAGE = re.compile(r"^message (\w+) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"^  (optional|repeated|map<string, )\s*\.?([\w.]+)>? (\w+) = (\d+);", re.MULTILINE)


def messages_of(folders: list[Path]) -> dict[str, list[tuple[str, str, str, str]]]:
    """Return the fields of each message, by its full name: label, full type, name and number."""
    found = {}
    for path in (path for folder in folders for path in sorted(folder.rglob("generated.proto"))):
        text = path.read_text()
        package = PACKAGE.search(text)[1]
        for name, body in MESSAGE.findall(text):
            found[f"{package}.{name}"] = [
                (label.strip(), qualified(kind, package), field, number)
                for label, kind, field, number in FIELD.findall(body)
            ]
    return found


def qualified(kind: str, package: str) -> str:
    """Return the full name of a type; of a type of the same package, the file has the last component only."""
    if kind in PLAIN or kind.startswith("k8s.io."):
        return kind
    return f"{package}.{kind}"


def short(name: str) -> str:
    """Return `core.v1.Pod` for `k8s.io.api.core.v1.Pod`; for a type of the API machinery, its last component."""
    return name.removeprefix("k8s.io.api.") if name.startswith("k8s.io.api.") else name.rpartition(".")[2]


def main(folders: list[Path]) -> None:
    messages, tables = messages_of(folders), json.loads(FIELDS.read_text())
    json_fields = tables[max(tables)]
    roots = [f"k8s.io.api.{root}" for root in ROOTS if not root.endswith((".Workload", ".PodGroup"))]
    left = [*roots, "k8s.io.apimachinery.pkg.apis.meta.v1.DeleteOptions"]
    table: dict[str, dict[str, list[str]]] = {}
    while left:
        name = left.pop()
        if name in SCALARS or name in PLAIN or short(name) in table:
            continue
        known = json_fields.get(short(name))
        fields = table[short(name)] = {}
        for label, kind, field, number in messages[name]:
            left.append(kind)
            text = SCALARS.get(kind) or (kind if kind in PLAIN else short(kind))
            is_embedded = known is not None and field not in known and kind in messages
            prefix = ">" if is_embedded else {"repeated": "[]", "optional": ""}.get(label, "{}")
            fields[number] = ["" if is_embedded else field, prefix + text]
    lines = (f"  {json.dumps(name)}: {json.dumps(fields)}" for name, fields in sorted(table.items()))
    print("{\n" + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main([Path(path) for path in sys.argv[1:]])

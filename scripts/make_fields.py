"""Generate the field table of the embedded API server from the published OpenAPI document of each release.

    python -m scripts.make_fields 1.36=path/swagger.json 1.37=... \
        > gangjobs_sandbox/registry/fields.json

`swagger.json` is `api/openapi-spec/swagger.json` of the Kubernetes source, which the published Go module
`k8s.io/kubernetes` contains. The table contains only the names and types of the fields that the sandbox's resources
reach: no descriptions, formats or defaults. The newest release is written in full, and the other releases as
differences.

A type is a scalar, the name of another type, `[]T` (a list that patches replace), `[key]T` (a list that
strategic merge patches merge by that field), `[=]T` (merged as a set) or `{}T` (a map).
"""

import json
import sys
from pathlib import Path

PREFIX = "#/definitions/"
ROOTS = (
    "batch.v1.Job",
    "coordination.v1.Lease",
    "core.v1.Binding",
    "core.v1.ConfigMap",
    "core.v1.Event",
    "core.v1.Namespace",
    "core.v1.Node",
    "core.v1.Pod",
    "core.v1.Secret",
    "core.v1.Service",
    "core.v1.ServiceAccount",
    "policy.v1.Eviction",
    "scheduling.v1.PriorityClass",
    *(
        f"scheduling.{version}.{kind}"
        for version in ("v1alpha2", "v1alpha3", "v1beta1")
        for kind in ("Workload", "PodGroup")
    ),
)
SCALARS = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": "quantity",
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": "intOrString",
    "io.k8s.apimachinery.pkg.apis.meta.v1.Time": "time",
    "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime": "microTime",
    "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1": "any",
}
NUMBERS = {("integer", "int32"): "int32", ("integer", "int64"): "int64", ("integer", None): "int64"}


def short(name: str) -> str:
    """Return `core.v1.Pod` for `io.k8s.api.core.v1.Pod`; for a type of the API machinery, its last component."""
    return name.removeprefix("io.k8s.api.") if name.startswith("io.k8s.api.") else name.rpartition(".")[2]


def type_of(schema: dict) -> tuple[str, str | None]:
    """Return the type in the table's notation, and the name of the definition that the type refers to."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(PREFIX)
        return (SCALARS[name], None) if name in SCALARS else (short(name), name)
    kind = schema.get("type")
    if kind == "array":
        item, target = type_of(schema["items"])
        return f"[{merge_key(schema)}]{item}", target
    if kind == "object" and "additionalProperties" in schema:
        item, target = type_of(schema["additionalProperties"])
        return "{}" + item, target
    if kind == "string" and schema.get("format") == "byte":
        return "bytes", None
    plain = {"string": "string", "boolean": "bool", "number": "float64"}.get(kind or "", "any")
    return NUMBERS.get((kind, schema.get("format")), plain), None


def merge_key(schema: dict) -> str:
    """Return the field by which a patch merges the list, `=` for a set, or nothing if a patch replaces the list."""
    if "merge" not in schema.get("x-kubernetes-patch-strategy", ""):
        return ""
    return schema.get("x-kubernetes-patch-merge-key", "=")


def types_of(swagger: dict) -> dict[str, dict[str, str]]:
    """Return the fields of all types that the roots reach, by short name of the type."""
    definitions = swagger["definitions"]
    pending = [name for name in definitions if short(name) in ROOTS]
    types: dict[str, dict[str, str]] = {}
    while pending:
        name = pending.pop()
        if short(name) in types:
            continue
        fields = types[short(name)] = {}
        for field, schema in sorted(definitions[name].get("properties", {}).items()):
            fields[field], target = type_of(schema)
            if target:
                pending.append(target)
    return types


def main() -> None:
    releases = {}
    for argument in sys.argv[1:]:
        release, _, path = argument.partition("=")
        releases[release] = types_of(json.loads(Path(path).read_text()))
    newest = max(releases, key=lambda release: [int(part) for part in release.split(".")])
    base = releases[newest]
    table = {newest: base} | {
        release: {name: fields for name, fields in types.items() if base.get(name) != fields}
        for release, types in releases.items()
        if release != newest
    }
    lines = []
    for release, types in sorted(table.items(), reverse=True):
        rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(fields)}" for name, fields in sorted(types.items()))
        lines.append(f" {json.dumps(release)}: {{\n{rows}\n }}")
    print("{\n" + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main()

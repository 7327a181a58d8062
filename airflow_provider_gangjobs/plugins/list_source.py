"""Namespaces of connections, as options of `[gangjobs]` name them: `gpu, gpu/team, cpu/*`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from airflow_provider_gangjobs.airflow_api.configuration import SECTION, conf
from airflow_provider_gangjobs.airflow_api.connection import DEFAULT_CONN_ID

OWN_NAMESPACE: Final = ""
"""The namespace that the connection names, or else `default`."""
ALL_NAMESPACES: Final = "*"


@dataclass(frozen=True, order=True)
class ListSource:
    """A namespace of the cluster of a connection, or all of its namespaces."""

    conn_id: str
    namespace: str = OWN_NAMESPACE
    """`OWN_NAMESPACE`, `ALL_NAMESPACES`, or a name."""

    def __str__(self) -> str:
        return f"{self.conn_id}/{self.namespace}" if self.namespace else self.conn_id

    @classmethod
    def parse(cls, text: str) -> ListSource:
        """Read one item, such as `gpu`, `gpu/team` or `gpu/*`."""
        conn_id, _, namespace = text.strip().partition("/")
        return cls(conn_id.strip(), namespace.strip())

    @classmethod
    def of_task(cls, rendered: Any) -> ListSource:
        """Return where the gang of a task is, by the rendered fields of the task."""
        values = rendered if isinstance(rendered, dict) else {}
        conn_id, namespace = (values.get(name) for name in ("kubernetes_conn_id", "namespace"))
        return cls(
            conn_id if isinstance(conn_id, str) and conn_id else DEFAULT_CONN_ID,
            namespace if isinstance(namespace, str) else "",
        )


def named_sources(option: str) -> list[ListSource]:
    """Return what an option of the section names; nothing if it is not set."""
    text = str(conf.get(SECTION, option, fallback="") or "")
    return [ListSource.parse(item) for item in text.split(",") if item.strip()]

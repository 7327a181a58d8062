"""GangPlugin: the tab "Gang" of a task instance in Airflow's UI.

Airflow loads this in every process that it has, so nothing is imported here but Airflow's own base class, which is
loaded by then. What serves the page is loaded by the API server at the first request for it.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

try:
    from airflow.sdk.plugins_manager import AirflowPlugin
except ImportError:  # Airflow 3.1; goes when 3.2 is the oldest that is supported
    from airflow.plugins_manager import AirflowPlugin  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

URL_PREFIX: Final = "/gangjobs"
PAGE: Final = "dags/{DAG_ID}/dagRuns/{RUN_ID}/taskInstances/{TASK_ID}/{MAP_INDEX}"
"""Airflow's UI fills in the names. Of a task that is not mapped it leaves `{MAP_INDEX}` as it is."""


class LateApp:
    """An ASGI application that is imported when it is first asked for something."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._app: Callable[..., Awaitable[None]] | None = None

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        # In a thread: it takes half a second of CPU, during which the API server answers others.
        if self._app is None:
            self._app = (await asyncio.to_thread(import_module, self._module)).make_app()
        assert self._app is not None, "it was made"
        await self._app(scope, receive, send)


class GangPlugin(AirflowPlugin):
    """Registered by the entry point `airflow.plugins`."""

    name = "gangjobs"
    fastapi_apps = [  # noqa: RUF012 - Airflow's name and form, in this class
        {"name": "Gangs", "url_prefix": URL_PREFIX, "app": LateApp("airflow_provider_gangjobs.plugins.app")}
    ]
    external_views = [  # noqa: RUF012
        {
            "name": "Gang",
            # Without a slash at its start it is relative to where Airflow is served, which may be under a path.
            "href": f"{URL_PREFIX[1:]}/{PAGE}",
            "destination": "task_instance",
            "url_route": "gang",
        }
    ]


__all__ = ["GangPlugin"]

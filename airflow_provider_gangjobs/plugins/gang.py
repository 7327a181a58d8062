"""GangPlugin: the tab "Gang" of a task instance, and the page "Gangs", in Airflow's UI.

Airflow loads plugins in each of its processes, so this module imports only Airflow's own base class, which Airflow has
loaded before. The API server imports the application that serves both at the first request.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

try:
    from airflow.sdk.plugins_manager import AirflowPlugin
except ImportError:  # Airflow 3.1; remove when 3.2 is the oldest supported version
    from airflow.plugins_manager import AirflowPlugin  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

URL_PREFIX: Final = "/gangjobs"
PAGE: Final = "dags/{DAG_ID}/dagRuns/{RUN_ID}/taskInstances/{TASK_ID}/{MAP_INDEX}"
"""Airflow's UI replaces the names in braces. If the task is not mapped, the UI leaves `{MAP_INDEX}` as it is."""


class LazyApp:
    """An ASGI application whose module is imported at the first request."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._app: Callable[..., Awaitable[None]] | None = None

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        # The import takes half a second of CPU. In a thread, it does not block other requests to the API server.
        if self._app is None:
            self._app = (await asyncio.to_thread(import_module, self._module)).make_app()
        assert self._app is not None, "the application was made above"
        await self._app(scope, receive, send)


class GangPlugin(AirflowPlugin):
    """Airflow finds this class by the entry point `airflow.plugins`."""

    name = "gangjobs"
    fastapi_apps = [  # noqa: RUF012 - Airflow defines the name and type of this attribute
        {"name": "Gangs", "url_prefix": URL_PREFIX, "app": LazyApp("airflow_provider_gangjobs.plugins.app")}
    ]
    external_views = [  # noqa: RUF012
        {
            "name": "Gang",
            # Without a leading slash the address is relative to Airflow's base URL, which may have a path.
            "href": f"{URL_PREFIX[1:]}/{PAGE}",
            "destination": "task_instance",
            "url_route": "gang",
        },
        {
            "name": "Gangs",
            "href": f"{URL_PREFIX[1:]}/gangs",
            "destination": "nav",
            "category": "browse",
            "url_route": "gangs",
        },
    ]

"""The current credentials of one cluster: loaded at the first use, and renewed before and after they expire.

Loading reads files, runs exec plugins, and builds a TLS context. All of this blocks, so loading runs in a thread, and
concurrent callers wait for the same load. Requests after a renewal use the new credentials.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider_gangjobs.cluster.auth.credential_source import CredentialSource
from airflow_provider_gangjobs.cluster.auth.tls import CertificateError, make_context
from airflow_provider_gangjobs.cluster.clock import Clock
from airflow_provider_gangjobs.cluster.errors import ClusterError, InvalidConnection
from airflow_provider_gangjobs.cluster.structured_log import log_fields

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_gangjobs.cluster.auth.credential_source import Access
    from airflow_provider_gangjobs.cluster.config import ClusterConfig

log = logging.getLogger(__name__)

RETRY_RENEWAL_S = 60
"""The delay after a failed renewal. The current credentials may still be valid."""

FORCED_RENEWAL_INTERVAL_S = 10
"""The server's refusals cause a renewal at most this often, however many requests were refused."""


class Credentials:
    """Loads and renews the `Access` of one cluster. Belongs to one event loop."""

    def __init__(
        self,
        config: ClusterConfig,
        *,
        clock: Clock | None = None,
        load: Callable[[], Access] | None = None,
    ) -> None:
        self._conn_id = config.conn_id
        self._clock = clock or Clock()
        self._load = load or CredentialSource(config).load
        self._access: Access | None = None
        self._renew_at: float | None = None
        self._forced_at = float("-inf")
        self._renewal_failed = False
        self._loading: asyncio.Task[Access] | None = None
        self.renewals = 0

    async def current(self) -> Access:
        """Return the current access. Load it if it is not loaded or due for renewal.

        Raises:
            InvalidConnection, CredentialsFailed: the first load failed. If a renewal fails, the old access stays.
        """
        if self._access is not None and not self._is_due():
            return self._access
        try:
            return await self._load_once()
        except ClusterError:
            if self._access is None:
                raise
            return self._access

    async def renew(self, refused: Access) -> Access:
        """Return another access after the server refused `refused` with a 401.

        This is a newer access if there is one, and a newly loaded access otherwise. Return `refused` itself if it was
        renewed a moment ago, because another request would not help.

        Raises:
            InvalidConnection, CredentialsFailed: new credentials could not be loaded.
        """
        if self._access is not refused and self._access is not None:
            return self._access
        if self._loading is not None:
            return await self._load_once()
        if self._clock.monotonic() - self._forced_at < FORCED_RENEWAL_INTERVAL_S:
            return refused
        self._forced_at = self._clock.monotonic()
        renewed = await self._load_once()
        log_fields(log, logging.DEBUG, "credentials renewed after a 401", connection=self._conn_id)
        return renewed

    def _is_due(self) -> bool:
        return self._renew_at is not None and self._clock.monotonic() >= self._renew_at

    async def _load_once(self) -> Access:
        """Load, or wait for the load that is running. The cancellation of a caller does not end the load."""
        if self._loading is None:
            self._loading = asyncio.create_task(self._reload())
            # asyncio logs an exception that nobody retrieves, which is the case if every caller was cancelled.
            self._loading.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(self._loading)

    async def _reload(self) -> Access:
        try:
            loaded = await asyncio.to_thread(self._load_blocking)
        except ClusterError as error:
            self._note_failure(error)
            raise
        finally:
            self._loading = None
        if self._renewal_failed:
            log_fields(log, logging.INFO, "credentials renewed after a failure", connection=self._conn_id)
        self._renewal_failed = False
        if self._access is not None:
            self.renewals += 1
        self._renew_at = None if loaded.renew_in_s is None else self._clock.monotonic() + loaded.renew_in_s
        self._access = loaded
        return loaded

    def _note_failure(self, error: ClusterError) -> None:
        """Let a renewal that was due and failed be repeated later, and log the first of such failures."""
        if self._access is None or not self._is_due():
            return
        self._renew_at = self._clock.monotonic() + RETRY_RENEWAL_S
        level, self._renewal_failed = logging.DEBUG if self._renewal_failed else logging.WARNING, True
        log_fields(log, level, "credentials could not be renewed, the current ones stay in use", cause=str(error))

    def _load_blocking(self) -> Access:
        loaded = self._load()
        if not loaded.base_url.startswith("https"):
            return loaded
        if self._access is not None and loaded.tls == self._access.tls:
            return replace(loaded, ssl=self._access.ssl)
        try:
            return replace(loaded, ssl=make_context(loaded.tls))
        except CertificateError as error:
            problem = f"its certificates cannot be used: {error}"
            raise InvalidConnection(self._conn_id, problem, "Correct the field in the kubeconfig.") from None

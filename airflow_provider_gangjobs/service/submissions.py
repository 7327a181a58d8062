"""The use cases that keep the submissions of a namespace: find, list, delete and clean up submissions, and store files.

A DAG file may import this module, so the module imports no client library. Each method imports what it calls.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.ending.half_submitted import CleanupReport
    from airflow_provider_gangjobs.ending.release import ReleaseReport
    from airflow_provider_gangjobs.gang.awaited_gangs import GangSelection, SelectedGang
    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.submission.operations import SubmissionPage
    from airflow_provider_gangjobs.submission.record import SubmissionRecord
    from airflow_provider_gangjobs.submission.uploads import Upload

DEFAULT_NAMESPACE: Final = "default"
SUBMISSIONS_PER_PAGE: Final = 100
PODS_GONE_WITHIN_S: Final = 120.0
"""The default termination grace period is 30 s, and a node needs some time to notice that a pod is deleted."""
HALF_SUBMITTED_FOR: Final = timedelta(hours=1)
"""A submission takes a second, and the retries of a task usually follow within minutes."""


class SubmissionService(Struct, frozen=True):
    """The submissions and uploads of one cluster, over one client. `GangService` has the use cases of gangs, too.

    Every method may raise `exceptions.GangJobError` or `cluster.errors.ClusterError`.
    """

    client: Client

    @property
    def namespace(self) -> str:
        """The namespace of gangs whose spec names no namespace."""
        return self.client.config.namespace or DEFAULT_NAMESPACE

    async def submission(self, submission_id: str, *, namespace: str | None = None) -> SubmissionRecord | None:
        """Return the submission of this id: state, phase, times, and the error if it failed. Sends one request.

        Returns None if there is no such submission.
        """
        from airflow_provider_gangjobs.submission import operations

        return await operations.find(self.client, submission_id, namespace=namespace or self.namespace)

    async def submissions(
        self,
        *,
        namespace: str | None = None,
        selector: str | None = None,
        limit: int = SUBMISSIONS_PER_PAGE,
        continue_token: str | None = None,
    ) -> SubmissionPage:
        """Return a page of a namespace's submissions, of tasks and of submission ids.

        :param selector: A label selector. By default all submissions are returned.
        :param continue_token: The token of the page before this one.
        """
        from airflow_provider_gangjobs.submission import operations

        return await operations.page(
            self.client,
            namespace=namespace or self.namespace,
            selector=selector,
            limit=limit,
            continue_token=continue_token,
        )

    async def find_gangs(self, selection: GangSelection) -> dict[str, SelectedGang]:
        """Return the selected gangs by a key that stays the same while the gangs change.

        Sends one request for about 200 tasks, and another one if gangs that are not selected by name have roles.
        """
        from airflow_provider_gangjobs.gang.state.gang_jobs import read_gangs
        from airflow_provider_gangjobs.jobs.read import list_jobs, list_role_jobs

        jobs = await list_jobs(self.client, selection.namespace, selection.label_selectors)
        others = () if selection.names else await list_role_jobs(self.client, selection.namespace, jobs)
        return selection.find(read_gangs([*jobs, *others]))

    async def list_gangs(self, selection: GangSelection) -> list[GangRef]:
        """Return all attempts of the selected gangs. Sends one request for about 200 tasks."""
        from airflow_provider_gangjobs.gang.state.gang_jobs import read_gangs
        from airflow_provider_gangjobs.jobs.read import list_jobs

        jobs = await list_jobs(self.client, selection.namespace, selection.label_selectors)
        return [job.ref for job in selection.matching(read_gangs(jobs))]

    async def hand_over(self, ref: GangRef, claim: str) -> bool:
        """Give up the claim of a gang that runs on after its task has succeeded. Nobody is responsible for it then.

        Returns false if the Job is gone, or if `claim` is not responsible for the gang.
        """
        from airflow_provider_gangjobs.jobs.claim import hand_over

        return await hand_over(self.client, ref, claim, at=datetime.now(UTC))

    async def delete_submission(
        self,
        submission_id: str,
        *,
        job: bool = False,
        namespace: str | None = None,
        timeout_s: float = PODS_GONE_WITHIN_S,
    ) -> tuple[GangRef, ...]:
        """Delete the ledger, the files, the Service and the groups of a submission; with `job`, also its Jobs.

        A live gang is halted first, and the call waits for its pods. Safe to repeat, also after an error. Returns the
        Jobs that the submission had.

        Raises:
            SubmissionFailed: the pods were not gone within `timeout_s` seconds, or the server refused a request.
        """
        from airflow_provider_gangjobs.ending.delete_submission import delete_submission
        from airflow_provider_gangjobs.ending.release import release_pods

        async def release(ref: GangRef) -> None:
            await release_pods(self.client, namespace=ref.namespace, gang=ref.name, job_uid=ref.uid)

        return await delete_submission(
            self.client,
            submission_id,
            namespace=namespace or self.namespace,
            release=release,
            job=job,
            timeout_s=timeout_s,
        )

    async def tidy(
        self,
        *,
        namespace: str | None = None,
        everywhere: bool = False,
        older_than: timedelta = HALF_SUBMITTED_FOR,
        dry_run: bool = False,
    ) -> CleanupReport:
        """Complete or remove the gangs whose submission stopped half-way. Safe to repeat and to run concurrently.

        :param everywhere: Clean up the whole cluster instead of one namespace.
        :param older_than: Leave gangs alone whose Job was created more recently than this.
        :param dry_run: Only report what would be done.
        """
        from airflow_provider_gangjobs.ending.half_submitted import clean_up_half_submitted

        where = None if everywhere else namespace or self.namespace
        now = self.client.server_clock.now
        return await clean_up_half_submitted(
            self.client, namespace=where, older_than=older_than, now=now, dry_run=dry_run
        )

    async def release_finalizers(self, *, namespace: str | None = None, gang: str | None = None) -> ReleaseReport:
        """Remove the provider's finalizer from the pods of a gang, of a namespace, or (with neither) of the cluster.

        For uninstalling. Outcomes that are not recorded yet are lost. Safe to repeat.
        """
        from airflow_provider_gangjobs.ending.release import release_pods

        return await release_pods(self.client, namespace=namespace, gang=gang)

    async def upload(self, files: Mapping[str, str | bytes], *, namespace: str | None = None) -> str:
        """Store files that many gangs share. Returns their content id, for `GangSpec(uploads=[...])`."""
        from airflow_provider_gangjobs.submission import uploads

        return await uploads.upload(self.client, files, namespace=namespace or self.namespace)

    async def uploads(self, *, namespace: str | None = None) -> list[Upload]:
        """Return all uploads of a namespace."""
        from airflow_provider_gangjobs.submission import uploads

        return await uploads.uploads(self.client, namespace=namespace or self.namespace)

    async def delete_upload(self, content_id: str, *, namespace: str | None = None) -> bool:
        """Delete an upload, even if gangs still use it. Returns false if the upload was gone."""
        from airflow_provider_gangjobs.submission import uploads

        return await uploads.delete_upload(self.client, content_id, namespace=namespace or self.namespace)


__all__ = ["SubmissionService"]

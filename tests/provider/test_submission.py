"""One task has one gang: the objects that a submission creates, and what the next submission does with them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from airflow_provider_gangjobs.ending.deliver import mark_delivered
from airflow_provider_gangjobs.exceptions import (
    GangUnsupported,
    InvalidGangSpec,
    JobDeleted,
    SubmissionConflict,
    SubmissionFailed,
)
from airflow_provider_gangjobs.gang.spec import GangSpec
from airflow_provider_gangjobs.gang.state.phase import SubmissionState
from airflow_provider_gangjobs.gang.state.stored_gang import read_job
from airflow_provider_gangjobs.submission.submission import UnconfirmedTry
from gangjobs_sandbox.api import Fault, FaultKind
from gangjobs_sandbox.releases import RELEASES as RELEASES_OF_SANDBOX
from gangjobs_sandbox.resources import JOBS, PODGROUPS, SERVICES, WORKLOADS
from tests.crashes import CrashingClient
from tests.ends import delete_gang
from tests.manifests import SUSPENDED_MANIFEST
from tests.provider.role_gangs import LEADER_AND_WORKERS
from tests.provider.submission_cluster import GANG_OF_4, NO_PERMISSION, RELEASES, running_cluster
from tests.sandbox.builders import NAMESPACE

PREFERRED = GangSpec(image="trainer:1", workers=4, gang="preferred")
BARE = GangSpec(image="trainer:1", workers=4, rendezvous=False)


def holds_claim(cluster, ref, claim: str) -> bool:
    return any(read_job(job).ref == ref and read_job(job).holds_claim(claim) for job in cluster.jobs())


@pytest.mark.parametrize("release", RELEASES)
async def test_gang_is_placed_as_one(release):
    async with running_cluster(release) as cluster:
        submission = await cluster.submit()
        cluster.check_one_live_gang(submission)
        dialect = {"1.36": "v1alpha2", "1.37": "v1beta1"}[release]
        assert (submission.decision, submission.state) == (f"gang:{dialect}", SubmissionState.IN_PROGRESS)
        assert not submission.is_suspended
        assert (submission.adopted, submission.attempt, submission.notes) == (False, 0, ())


BUDGETS = {"a bare gang": (BARE, 5), "with rendezvous and files": (GANG_OF_4, 7)}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("spec", "requests_max"), BUDGETS.values(), ids=BUDGETS)
async def test_submission_takes_few_requests_also_if_the_job_controller_writes_meanwhile(release, spec, requests_max):
    """The Job controller writes the status of a suspended Job at once, so the version of the Job has changed."""
    async with running_cluster(release) as cluster:
        process = CrashingClient(cluster.client, after_request=cluster.bench.run)
        submission = await cluster.submit(spec, api=process)
        assert len(process.requests) <= requests_max, process.requests
        assert cluster.time.now == 0
        cluster.check_one_live_gang(submission)


async def test_repeating_the_submission_changes_nothing(cluster):
    first = await cluster.submit()
    version = cluster.live_jobs()[0]["metadata"]["resourceVersion"]
    process = CrashingClient(cluster.client)
    second = await cluster.submit(api=process)
    assert (second.ref, second.adopted, len(process.requests)) == (first.ref, True, 1)
    assert cluster.live_jobs()[0]["metadata"]["resourceVersion"] == version


async def test_a_retry_adopts_and_takes_the_claim(cluster):
    first = await cluster.submit(claim="ti-1")
    second = await cluster.submit(claim="ti-2")
    assert (second.ref, second.attempt, second.adopted) == (first.ref, 0, True)
    assert not holds_claim(cluster, first.ref, "ti-1")
    assert holds_claim(cluster, first.ref, "ti-2")
    cluster.check_one_live_gang(second)


@pytest.mark.parametrize(("second_s", "expected"), [(900, 1500 + 700), (None, None)])
async def test_a_retry_has_its_whole_time_limit(cluster, second_s, expected):
    await cluster.submit(replace(GANG_OF_4, execution_timeout_s=100), claim="ti-1")
    await cluster.submit(replace(GANG_OF_4, execution_timeout_s=second_s), claim="ti-2")
    (job,) = cluster.jobs()
    assert job["spec"].get("activeDeadlineSeconds") == expected
    assert bool(read_job(job).claim.time_limit) == (second_s is not None)


async def test_never_replaces_the_gang_of_the_try_before(cluster):
    first = await cluster.submit(claim="ti-1")
    second = await cluster.submit(claim="ti-2", durable=False)
    assert (second.attempt, second.adopted) == (1, False)
    assert second.ref.uid != first.ref.uid
    cluster.check_one_live_gang(second)


async def test_undelivered_success_is_adopted_and_a_delivered_one_is_not(cluster):
    first = await cluster.submit(claim="ti-1")
    cluster.finish_job(first.ref.name)
    second = await cluster.submit(claim="ti-2")
    assert (second.ref, second.state) == (first.ref, SubmissionState.SUCCEEDED)
    assert await mark_delivered(cluster.client, first.ref, "ti-2")
    third = await cluster.submit(claim="ti-3")
    assert (third.attempt, third.state, third.is_suspended) == (1, SubmissionState.IN_PROGRESS, False)


async def test_submission_does_not_wait_for_a_job_that_is_being_deleted(cluster):
    first = await cluster.submit()
    cluster.bench.registry.patch(JOBS, first.ref.name, NAMESPACE, {"metadata": {"finalizers": ["example.org/x"]}})
    await delete_gang(cluster.client, first.ref)
    second = await cluster.submit()
    assert (second.attempt, second.adopted) == (1, False)


async def test_remains_of_a_deleted_gang_use_up_its_name(cluster):
    first = await cluster.submit()
    cluster.bench.registry.patch(
        SERVICES, first.ref.name, NAMESPACE, {"metadata": {"finalizers": ["example.org/slow"]}}
    )
    await delete_gang(cluster.client, first.ref)
    second = await cluster.submit()
    assert second.attempt == 1
    assert [job["metadata"]["uid"] for job in cluster.live_jobs()] == [second.ref.uid]


async def test_job_of_the_same_name_that_is_not_the_providers_is_a_conflict(cluster):
    submission = await cluster.submit()
    await delete_gang(cluster.client, submission.ref)
    cluster.bench.run(60)
    cluster.bench.job(submission.ref.name)
    with pytest.raises(SubmissionConflict, match="belongs to another submission"):
        await cluster.submit()


async def test_one_worker_needs_no_gang_anywhere(without_gangs):
    submission = await without_gangs.submit(GangSpec(image="trainer:1"))
    assert (submission.decision, submission.notes) == ("basic:one pod", ())
    without_gangs.check_one_live_gang(submission, workers=1)


@pytest.mark.parametrize("spec", [GANG_OF_4, LEADER_AND_WORKERS], ids=["one Job", "roles"])
async def test_required_gang_is_refused_before_anything_is_created(without_gangs, spec):
    with pytest.raises(GangUnsupported, match="does not serve the Workload API"):
        await without_gangs.submit(spec)
    assert without_gangs.jobs() == []


@pytest.mark.parametrize("spec", [PREFERRED, replace(LEADER_AND_WORKERS, gang="preferred")], ids=["one Job", "roles"])
async def test_preferred_gang_falls_back_and_logs_the_reason(without_gangs, spec):
    submission = await without_gangs.submit(spec)
    assert submission.decision.startswith("basic:Kubernetes 1.37 does not serve the Workload API")
    assert submission.notes == (f"Not a gang: {submission.decision.removeprefix('basic:')}",)
    assert read_job(without_gangs.live_jobs()[0]).placement == submission.decision
    without_gangs.check_one_live_gang(submission)


async def test_dropped_link_is_found_and_the_job_is_deleted(without_gangs):
    without_gangs.ignore_scheduling_fields()
    with pytest.raises(GangUnsupported, match=r"dropped spec.template.spec.schedulingGroup"):
        await without_gangs.submit()
    assert without_gangs.jobs() == []


async def test_refusal_is_reported_although_the_job_cannot_be_deleted(cluster):
    cluster.faults.add(Fault(FaultKind.STATUS, code=403, method="POST", path="podgroups", times=None))
    cluster.faults.add(Fault(FaultKind.STATUS, code=403, method="DELETE", path="jobs", times=None))
    with pytest.raises(SubmissionFailed, match="create PodGroup"):
        await cluster.submit()


async def test_dropped_link_of_a_preferred_gang_is_reported(without_gangs):
    without_gangs.ignore_scheduling_fields()
    submission = await without_gangs.submit(PREFERRED)
    assert "dropped spec.template.spec.schedulingGroup" in submission.notes[0]
    assert read_job(without_gangs.live_jobs()[0]).placement == submission.decision
    without_gangs.check_one_live_gang(submission)


async def test_gang_policy_off_creates_no_workload(cluster):
    submission = await cluster.submit(GangSpec(image="trainer:1", workers=4, gang="off"))
    assert submission.decision == "off"
    assert cluster.objects(WORKLOADS) == cluster.objects(PODGROUPS) == []
    cluster.check_one_live_gang(submission)


LINKED = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "spec": {
        "parallelism": 2,
        "completions": 2,
        "completionMode": "Indexed",
        "template": {
            "spec": {
                "schedulingGroup": {"podGroupName": "mine"},
                "containers": [{"name": "main", "image": "trainer:1"}],
            }
        },
    },
}


async def test_link_of_the_user_is_not_changed(cluster):
    submission = await cluster.submit(GangSpec(manifest=LINKED))
    assert submission.decision == "brought"
    assert cluster.objects(WORKLOADS) == cluster.objects(PODGROUPS) == []
    (job,) = cluster.live_jobs()
    assert job["spec"]["template"]["spec"]["schedulingGroup"] == {"podGroupName": "mine"}


async def test_dropped_link_of_the_user_is_refused(without_gangs):
    with pytest.raises(GangUnsupported, match="dropped"):
        await without_gangs.submit(GangSpec(manifest=LINKED))
    assert without_gangs.jobs() == []


@pytest.mark.parametrize(
    "spec",
    [
        GangSpec(image="trainer:1", workers=4, labels={"kueue.x-k8s.io/queue-name": "team"}),
        GangSpec(image="trainer:1", workers=4, manifest=SUSPENDED_MANIFEST),
    ],
    ids=["in a queue of Kueue", "kept by the user"],
)
async def test_gang_that_is_kept_suspended_is_complete(cluster, spec):
    submission = await cluster.submit(spec)
    again = await cluster.submit(spec, claim="ti-2")
    assert submission.state is again.state is SubmissionState.IN_PROGRESS
    assert submission.is_suspended
    assert again.is_suspended
    (job,) = cluster.live_jobs()
    assert job["spec"]["suspend"] is True
    assert len(cluster.objects(PODGROUPS)) == len(cluster.objects(SERVICES)) == 1


SCHEDULED_JOB = GangSpec(image="trainer:1", workers=4, gang_scheduler="job-scheduling")


async def test_gang_by_job_scheduling_is_made_by_the_job_controller():
    async with running_cluster(workload_with_job=True) as cluster:
        cluster.run_controllers_during_sleep()
        process = CrashingClient(cluster.client)
        submission = await cluster.submit(SCHEDULED_JOB, api=process)
        assert submission.decision == "gang:job-scheduling"
        assert {"POST workloads", "POST podgroups"}.isdisjoint(process.requests)
        cluster.check_one_live_gang(submission)


async def test_gang_by_job_scheduling_without_a_controller_is_refused(cluster):
    with pytest.raises(GangUnsupported, match="its gate WorkloadWithJob is off"):
        await cluster.submit(SCHEDULED_JOB)
    assert cluster.jobs() == []
    assert cluster.time.now == pytest.approx(15)


async def test_resource_that_is_no_longer_served_is_a_retryable_error(without_gangs):
    without_gangs.ignore_scheduling_fields()
    without_gangs.bench.registry.release = RELEASES_OF_SANDBOX["1.37"]
    with pytest.raises(SubmissionFailed, match="Discovery is repeated within ten minutes") as caught:
        await without_gangs.submit()
    assert caught.value.retryable


async def test_half_submitted_gang_of_an_older_release_is_submitted_again(without_gangs):
    known = without_gangs.discovered
    without_gangs.ignore_scheduling_fields()
    without_gangs.bench.registry.release = RELEASES_OF_SANDBOX["1.37"]
    with pytest.raises(SubmissionFailed):
        await without_gangs.submit(PREFERRED)
    without_gangs.discovered = known
    submission = await without_gangs.submit(PREFERRED, claim="ti-2")
    assert (submission.attempt, submission.decision.partition(":")[0]) == (1, "basic")
    assert len(without_gangs.jobs()) == 1


async def test_adoption_that_conflicts_reads_the_jobs_again(cluster):
    first = await cluster.submit(claim="ti-1")
    cluster.faults.add(Fault(FaultKind.STATUS, code=409, method="PATCH", times=2))
    second = await cluster.submit(claim="ti-2")
    assert second.ref == first.ref
    assert holds_claim(cluster, first.ref, "ti-2")


async def test_job_that_changes_at_each_try_is_an_error(cluster):
    await cluster.submit(claim="ti-1")
    cluster.faults.add(Fault(FaultKind.STATUS, code=409, method="PATCH", times=None))
    with pytest.raises(SubmissionFailed, match="changed while it was adopted"):
        await cluster.submit(claim="ti-2")


@pytest.mark.parametrize(
    ("method", "durable", "step"),
    [("PATCH", True, "adopt the Job"), ("DELETE", False, "delete an earlier attempt")],
    ids=["adoption", "deletion of an earlier attempt"],
)
async def test_step_that_is_forbidden_is_named_with_the_missing_right(cluster, method, durable, step):
    await cluster.submit(claim="ti-1")
    cluster.faults.add(Fault(FaultKind.STATUS, code=403, method=method, times=None, message=NO_PERMISSION))
    with pytest.raises(SubmissionFailed, match=r"403.*see the documented Role") as caught:
        await cluster.submit(claim="ti-2", durable=durable)
    assert (caught.value.step, caught.value.retryable) == (step, False)


MISSING_RIGHT = "Give the service account this permission; see the documented Role"
REFUSALS = {
    "no permission": (
        "services",
        f'{NO_PERMISSION}: RBAC: role.rbac.authorization.k8s.io "gangs" not found',
        False,
        MISSING_RIGHT,
    ),
    # It has the words "not found", as the refusal of a group whose Workload is not seen yet.
    "no permission for a group": (
        "podgroups",
        (
            'podgroups.x is forbidden: User "a" cannot create resource "podgroups" in API group "x": '
            'RBAC: role.rbac.authorization.k8s.io "gangs" not found'
        ),
        False,
        MISSING_RIGHT,
    ),
    "quota": ("services", 'services "train" is forbidden: exceeded quota: team', True, "Run the task again"),
    "admission plugin": (
        "services",
        'services "train" is forbidden: violates PodSecurity "restricted"',
        False,
        "Correct the",
    ),
    "webhook": ("services", 'admission webhook "a.b.io" denied the request: no', False, "Correct the request"),
}


@pytest.mark.parametrize(("path", "message", "retryable", "remedy"), REFUSALS.values(), ids=REFUSALS)
async def test_remedy_of_a_forbidden_request_fits_who_has_refused_it(cluster, path, message, retryable, remedy):
    cluster.faults.add(Fault(FaultKind.STATUS, code=403, method="POST", path=path, message=message, times=None))
    with pytest.raises(SubmissionFailed) as caught:
        await cluster.submit()
    assert caught.value.retryable is retryable
    assert caught.value.remedy.startswith(remedy)


async def test_priority_class_that_does_not_exist_is_named_with_its_remedy(cluster):
    with pytest.raises(SubmissionFailed, match="no PriorityClass with name urgent was found") as caught:
        await cluster.submit(GangSpec(image="trainer:1", workers=4, priority_class="urgent"))
    assert caught.value.remedy == "Create the PriorityClass, or correct priority_class"
    assert (caught.value.retryable, cluster.live_jobs()) == (False, [])


async def test_unknown_capabilities_are_a_retryable_error(cluster):
    unknown = {"scheduling.k8s.io": "500"}
    cluster.discovered = replace(cluster.discovered, resources={}, unknown=unknown)
    with pytest.raises(SubmissionFailed, match=r"could not read whether .*scheduling.k8s.io: 500") as caught:
        await cluster.submit()
    assert caught.value.retryable


async def test_gang_by_job_scheduling_without_a_controller_falls_back_if_preferred(cluster):
    submission = await cluster.submit(replace(SCHEDULED_JOB, gang="preferred"))
    assert "WorkloadWithJob is off" in submission.notes[0]
    cluster.check_one_live_gang(submission)


async def test_invalid_request_is_refused_without_a_request(cluster):
    process = CrashingClient(cluster.client)
    with pytest.raises(InvalidGangSpec, match="workers: is 0"):
        await cluster.submit(GangSpec(image="a", workers=0), api=process)
    assert process.requests == []


async def test_manifest_as_text_and_as_data_are_the_same_gang(cluster):
    text = """
    apiVersion: batch/v1
    kind: Job
    spec:
      parallelism: 2
      completions: 2
      completionMode: Indexed
      template:
        spec:
          schedulingGroup: {podGroupName: mine}
          containers: [{name: main, image: "trainer:1"}]
    """
    first = await cluster.submit(GangSpec(manifest=LINKED))
    second = await cluster.submit(GangSpec(manifest=text), claim="ti-2")
    assert second.ref == first.ref


class Deleting(CrashingClient):
    """A client whose Job is deleted before the client resumes it."""

    def __init__(self, cluster):
        super().__init__(cluster.client)
        self.cluster = cluster

    async def patch(self, resource, name, *args, **kwargs):
        self.cluster.bench.registry.delete(JOBS, name, NAMESPACE, propagation="Background")
        return await self.cluster.client.patch(resource, name, *args, **kwargs)


@pytest.mark.parametrize("is_seen", [True, False], ids=["seen", "unseen"])
async def test_job_deleted_while_it_is_submitted_stays_deleted(cluster, is_seen):
    if not is_seen:
        cluster.faults.add(Fault(FaultKind.STATUS, code=500, method="PATCH"))
    with pytest.raises(JobDeleted, match="vanished before it was started"):
        await cluster.submit(api=Deleting(cluster))
    assert cluster.jobs() == []


async def test_job_that_is_being_deleted_is_not_resumed(cluster):
    spec = GangSpec(manifest={**LINKED, "metadata": {"finalizers": ["example.org/slow"]}})
    with pytest.raises(JobDeleted, match="deleted before it was started"):
        await cluster.submit(spec, api=Deleting(cluster))
    assert cluster.jobs()[0]["spec"]["suspend"] is True


async def test_stopped_while_it_is_submitted_stays_stopped(cluster):

    class Stopping(CrashingClient):
        async def patch(self, resource, name, namespace, body, **kwargs):
            annotations = {"gangjobs.airflow/stopped": "stop"}
            cluster.bench.registry.patch(JOBS, name, NAMESPACE, {"metadata": {"annotations": annotations}})
            return await cluster.client.patch(resource, name, namespace, body, **kwargs)

    with pytest.raises(SubmissionFailed, match="stopped in the meantime"):
        await cluster.submit(api=Stopping(cluster.client))
    assert cluster.jobs()[0]["spec"]["suspend"] is True


FIRST_TRY, SECOND_TRY = "019a0000-0000-7000-8000-000000000001", "019a0000-0001-7000-8000-000000000000"
"""Ids of two tries, the second of which seems to be later."""
TAKEN_OVER = "Another try of the task is responsible for the gang"
UNKNOWN = "Airflow does not say which try runs. Check that the worker reaches Airflow"


class Airflow:
    """Whether the try runs that submits; None if Airflow does not answer."""

    def __init__(self, answer: bool | None, *, is_late: bool = False) -> None:
        self.answer = answer
        self.is_late = is_late
        self.questions = 0

    async def confirm(self, *, always: bool = False) -> None:
        if always or self.is_late:
            self.questions += 1
            if not self.answer:
                raise UnconfirmedTry(has_ended=self.answer is False)


async def test_try_that_runs_adopts_the_gang_of_a_try_whose_id_is_later(cluster, caplog):
    theirs = await cluster.submit(claim=SECOND_TRY)
    airflow = Airflow(True)

    ours = await cluster.submit(claim=FIRST_TRY, confirm=airflow.confirm)

    assert (ours.ref, ours.adopted, airflow.questions) == (theirs.ref, True, 1)
    assert holds_claim(cluster, theirs.ref, FIRST_TRY)
    assert "A clock of Airflow was wrong when one of these tries began" in caplog.text


@pytest.mark.parametrize(
    ("confirm", "message"),
    [(Airflow(False).confirm, TAKEN_OVER), (Airflow(None).confirm, UNKNOWN), (None, TAKEN_OVER)],
    ids=["it has ended", "no answer", "Airflow cannot be asked"],
)
async def test_try_that_is_not_known_to_run_leaves_the_gang_of_a_later_try_alone(cluster, confirm, message):
    theirs = await cluster.submit(claim=SECOND_TRY)
    with pytest.raises(SubmissionFailed, match=message):
        await cluster.submit(claim=FIRST_TRY, confirm=confirm)
    assert holds_claim(cluster, theirs.ref, SECOND_TRY)
    cluster.check_one_live_gang(theirs)


@pytest.mark.parametrize("answer", [False, None])
@pytest.mark.parametrize("durable", [True, False])
async def test_late_process_of_an_ended_try_leaves_the_gang_of_the_try_that_runs_alone(cluster, durable, answer):
    """The id of the try that has ended is later, because a clock was ahead. So only Airflow knows which try runs."""
    theirs = await cluster.submit(claim=FIRST_TRY)

    with pytest.raises(UnconfirmedTry):
        await cluster.submit(claim=SECOND_TRY, durable=durable, confirm=Airflow(answer, is_late=True).confirm)

    assert holds_claim(cluster, theirs.ref, FIRST_TRY)
    cluster.check_one_live_gang(theirs)


async def test_misplaced_field_of_pod_overrides_is_told_at_its_place(cluster):
    spec = GangSpec(image="trainer:1", workers=2, pod_overrides={"initContainers": []})
    with pytest.raises(SubmissionFailed, match=r'unknown field "spec\.template\.initContainers"') as caught:
        await cluster.submit(spec)

    place = "pod_overrides.initContainers: is no field that the API server knows."
    assert caught.value.remedy == f"{place} Did you mean spec.initContainers?"
    assert (caught.value.retryable, cluster.live_jobs()) == (False, [])

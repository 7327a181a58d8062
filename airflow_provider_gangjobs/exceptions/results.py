"""Exceptions of reading: the state, an outcome or a result of a gang is unknown or cannot be used."""

# These names appear in logs and retry policies, where the suffix "Error" would add nothing.
# ruff: noqa: N818

from __future__ import annotations

from airflow_provider_gangjobs.exceptions.base import GangJobError, format_ranks, to_short_sentence
from airflow_provider_gangjobs.kube.text import pluralize


class TrackingFailed(GangJobError):
    """The state of the gang could not be read. The gang may run, or may have ended."""

    ref: str
    reason: str
    last_phase: str = ""
    message: str = ""

    category = "Unknown"
    _evidence_field = "message"
    _usual_remedy = "The gang was not changed. Run the task again: the next try finds a gang that runs or has succeeded"

    @property
    def what(self) -> str:
        last_phase = f"; the last known phase is {self.last_phase}" if self.last_phase else ""
        return f"The state of gang {self.ref} could not be read ({self.reason}){last_phase}"


class OutcomesMissing(GangJobError):
    """The gang succeeded, but the outcome of a rank that completed cannot be read, so its result is unknown."""

    ref: str
    ranks: tuple[int, ...] = ()
    """Completed ranks without an outcome; empty if the Job is not Indexed or its completed ranks are unknown."""
    count: int = 0
    """How many outcomes are missing; 0 if the number is unknown."""
    job_is_gone: bool = False
    held: int = 0
    """How many pods the finalizer `gangjobs.airflow/harvest` still holds."""
    problem: str = ""
    """Why outcomes could not be recorded; empty if the reason is unknown."""

    @property
    def retryable(self) -> bool:
        """Whether another try runs the gang again. While the Job exists, another try finds the same gang."""
        return self.job_is_gone

    @property
    def what(self) -> str:
        if not self.count:
            return f"Gang {self.ref} succeeded, but its results are unknown: the completed ranks are unknown"
        missing = f"{pluralize(self.count, 'outcome')} of completed ranks cannot be read"
        return f"Gang {self.ref} succeeded, but its results are unknown: {missing}{format_ranks(self.ranks)}"

    @property
    def evidence(self) -> str:
        if self.job_is_gone:
            why = "The Job was deleted after its end, and the recorded outcomes with it"
        elif self.held:
            why = "The outcomes are not recorded"
        else:
            why = "The outcomes are not recorded, and the pods no longer exist"
        held = ""
        if self.held:
            are = "is" if self.held == 1 else "are"
            held = f"{pluralize(self.held, 'pod')} {are} still held by the finalizer gangjobs.airflow/harvest"
        return " ".join(filter(None, (to_short_sentence(why), to_short_sentence(self.problem), held)))

    @property
    def remedy(self) -> str:
        accept = 'If the task needs no results, set results="none"'
        release = " Free the held pods with `gangjobs release`." if self.held else ""
        if self.job_is_gone:
            return (
                "Set a longer ttl_after_finished, or find out who deletes the Job; another try runs the gang again. "
                f"{accept}.{release}"
            )
        return (
            "Check the quota and the permissions for ConfigMaps in the namespace. The Job is kept: delete the Job and "
            f"clear the task to run the gang again. {accept}.{release}"
        )


class ResultTooLarge(GangJobError):
    """A rank wrote a result above the limit to GANG_RESULT_PATH."""

    ref: str
    rank: int
    size: int = 0
    """The size in bytes. The kubelet keeps no more than `limit`, so this is a lower bound."""
    limit: int = 4096
    """The size from which on a result may have been truncated. The largest result is one byte smaller. The limit is
    lower in a pod of more than three containers, which share 12 KiB."""

    _usual_remedy = "Set result_storage, or write large results to storage and return their address"
    _is_permanent = True  # the program would write a result of the same size

    @property
    def what(self) -> str:
        size = f"{self.size} bytes or more; the limit is {self.limit - 1} bytes"
        return f"Rank {self.rank} of gang {self.ref} wrote a result of {size}"

    @property
    def evidence(self) -> str:
        if self.limit == type(self).limit:
            return ""
        return "The containers of its pod share 12 KiB, and result_storage stores only results of more than 4095 bytes"


class ResultRefused(GangJobError):
    """A rank wrote a result that Airflow cannot store, such as NaN, an integer of 65 bits, or the character U+0000."""

    ref: str
    rank: int
    problem: str
    """What Airflow cannot store, with its place in the result."""

    _evidence_field = "problem"
    _usual_remedy = 'Let the rank write another value there, such as null or text, or set results="none"'
    _is_permanent = True  # the program would write the same result

    @property
    def what(self) -> str:
        return f"Rank {self.rank} of gang {self.ref} wrote a result that Airflow cannot store"


class ResultAddressRefused(GangJobError):
    """A rank returned an address that is not in the folder of its task. Nothing was opened."""

    address: str
    folder: str = ""
    """Where the address may be; empty if no task that runs gangs has checked the address."""
    is_link: bool = False
    """The address is in the folder, and a symbolic link leads somewhere else."""

    _usual_remedy = (
        "If the value is from a sensor or a hook, name the result_storage of the"
        " task that ran the gang: read_result(value, storage=URL). Otherwise find out why the rank returned it"
    )
    _is_permanent = True  # the address stays the same

    @property
    def what(self) -> str:
        return f"The result at {self.address} is not read"

    @property
    def evidence(self) -> str:
        if self.is_link:
            return f"A symbolic link below {self.folder} leads to another file"
        if self.folder:
            return f"The address is not below {self.folder}"
        return "No task has found the address in its own folder, and a rank may write any address"


class ResultsTooLarge(GangJobError):
    """The results of all ranks together exceed `results_limit`. The Job is kept, and so are the results."""

    ref: str
    ranks: int
    """How many ranks have a result."""
    size: int
    """The size of all results in bytes."""
    limit: int

    _usual_remedy = (
        "Raise results_limit and clear the task, which returns the results without another run of the gang. "
        'Or let the ranks write less, or set results="rank0" or "none"'
    )
    _is_permanent = True  # another try would read the same results

    @property
    def what(self) -> str:
        return f"The results of {self.ranks} ranks of gang {self.ref} have {self.size} bytes; the limit is {self.limit}"

    @property
    def evidence(self) -> str:
        return "Airflow would store them as one value of its database. The gang has succeeded, and its Job is kept"


class LedgerUnavailable(GangJobError):
    """The ledger of the ranks' outcomes could not be read or written."""

    ref: str
    cause: str

    _evidence_field = "cause"
    _usual_remedy = "The task's service account needs get, list, create and patch on configmaps in the namespace"

    @property
    def what(self) -> str:
        return f"The outcomes of gang {self.ref} could not be read or written"

"""Submission: create each gang in the cluster exactly once. The package knows gangs and clusters, and not Airflow.

A caller builds one `SubmissionRequest` (`submission`), and `submit` carries it to the last step::

    request = SubmissionRequest.of_task(TaskKey("dag", "run", "task"), "id of the task instance")
    submission = await submit(client, GangSpec(image="i", workers=4), request, discovered=discovered)

Each round of a submission lists the Jobs of the task, decides by the rule of the request (`submission`), and runs
the steps that are left (`step`, `placement`). `submission` reads what the Job says about its submission.

Who retries what. Each loop runs inside the one above it, and no other loop repeats a request:

    loop                 where                          what is repeated                   until
    -------------------  -----------------------------  ---------------------------------  -----------------------------
    the operator's wait  `attempt.task_try.TaskTry`     the submission, while pods of an   `assemble_timeout`
                                                        earlier attempt run
    the rounds           `submit.submit`                the list of the Jobs and the       `ROUNDS_MAX` rounds
                                                        decision, after RestartSubmission
    the step             `step.run_step`                one write, after the object was    `TRIES_MAX` tries, or
                                                        read and is not the wanted one     `WEBHOOK_WAIT_S` seconds
    the transport        `cluster.http.transport`       one request that the server did    `RETRY_FOR_S` seconds
                                                        not process, or that reads

A request between the steps, such as the deletion of a superseded gang, is repeated by `RetryingRequests.retry`
in the place of the step. The three inner loops start nothing after the deadline of the request
(`deadline_s`). Waits for something that others do (pods that end, a controller that creates objects) repeat a read and
retry nothing: an error goes to the step or ends the submission.

This module imports nothing, so that the rules (`submission`) can be imported without an HTTP library.
"""

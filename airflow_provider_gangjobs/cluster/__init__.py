"""One Kubernetes API server: connection, credentials, requests, watches, and discovery. Knows no gangs.

    config = ClusterConfig.from_extras("kubernetes_default", {"kube_config_path": "~/.kube/config"})
    async with Client(config) as client:
        job = await client.create(JOBS, manifest, "team")
        await delete_uid(client, JOBS, job["metadata"]["name"], "team", job["metadata"]["uid"])

| module | what it is for |
|---|---|
| `config` | which cluster and credentials a connection of Airflow names |
| `auth` | the credentials: kubeconfigs, service accounts, exec plugins, TLS, and their renewal |
| `http` | how a request travels: the two transports, retries, logs |
| `client` | the verbs of the API, and conditional writes |
| `errors` | every error that a request may end with |
| `informer` | one shared watch for all waiting gangs |
| `discovery`, `kueue` | what a cluster serves and allows; the Workloads and the queues of Kueue |
| `clock`, `loop_local` | time, and the state of one event loop: wake-ups, and cached answers |

The package imports nothing of `gang`. The modules are imported one by one, because a process of a task needs few.
"""

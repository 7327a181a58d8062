"""The REST interface of submissions, in Airflow's API server.

| modules | content |
| --- | --- |
| `app` | the application, its routes, and its OpenAPI document |
| `access` | who may read and write which namespaces: Airflow's permissions, and the connections of the configuration |
| `limits` | how large a request may be, and how many a user may send |
| `clusters` | runs the use cases of `service` on an event loop of its own |
| `documents` | the bodies of requests and responses |
| `problems` | errors as problem details (RFC 9457) |

The operations are those of FLIP-236: submit under an id that the client chooses, ask, list, delete. The application has
no state: everything that it answers is in the cluster, so another process may answer the next request.
"""

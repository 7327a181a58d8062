"""What an administrator puts between a Job and its pods: webhooks and policies of one namespace."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from tests.airflow.polling import wait_for
from tests.cluster.certificates import write_certificate
from tests.replies import accepted
from tests.timeouts import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.control_plane import ControlPlane
    from tests.cluster.tenant import Tenant

_GROUP = "/apis/admissionregistration.k8s.io/v1"
WEBHOOKS = f"{_GROUP}/validatingwebhookconfigurations"
POLICIES = f"{_GROUP}/validatingadmissionpolicies"
BINDINGS = f"{_GROUP}/validatingadmissionpolicybindings"


@contextmanager
def created(plane: ControlPlane, path: str, body: dict[str, Any]) -> Iterator[None]:
    """Create an object, and delete it at the end of the block."""
    with plane.client() as admin:
        accepted(admin.post(path, json=body))
        try:
            yield
        finally:
            admin.delete(f"{path}/{body['metadata']['name']}")


def webhook(namespace: str, url: str, group: str, resource: str, **client: Any) -> dict[str, Any]:
    """Return a webhook for the objects of a resource that are created in a namespace."""
    rule = {"apiGroups": [group], "apiVersions": ["v1"], "resources": [resource], "operations": ["CREATE"]}
    hook = {
        "name": f"{resource}.example.com",
        "clientConfig": {"url": url, **client},
        "rules": [rule],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "timeoutSeconds": 2,
    }
    return {"metadata": {"name": f"{resource}-{namespace}"}, "webhooks": [hook]}


class _Refuses(BaseHTTPRequestHandler):
    """Refuses every object."""

    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        response = {"uid": review["request"]["uid"], "allowed": False, "status": {"message": "the pod has no team"}}
        body = json.dumps({**review, "response": response}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Write nothing."""


@contextmanager
def webhook_that_refuses_pods(tenant: Tenant) -> Iterator[None]:
    """Serve a webhook that refuses the pods of the tenant's namespace, from when the API server asks it."""
    folder = tenant.plane.folder / f"webhook-{tenant.namespace}"
    folder.mkdir()
    bundle = base64.b64encode(write_certificate(folder, "webhook")).decode()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Refuses)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, name="webhook", daemon=True).start()
    url = f"https://127.0.0.1:{server.server_port}/"
    try:
        with created(tenant.plane, WEBHOOKS, webhook(tenant.namespace, url, "", "pods", caBundle=bundle)):
            wait_until_pods_are_refused(tenant)
            yield
    finally:
        server.shutdown()
        server.server_close()


def wait_until_pods_are_refused(tenant: Tenant) -> None:
    """Wait until the API server uses a new webhook or policy, which takes it some seconds."""
    pod = {"metadata": {"name": "probe"}, "spec": {"containers": [{"name": "main", "image": "python:3.12"}]}}
    path = f"/api/v1/namespaces/{tenant.namespace}/pods?dryRun=All"
    with tenant.plane.client() as admin:
        wait_for("a refusal", lambda: admin.post(path, json=pod).is_client_error, TIMEOUT_S)


@contextmanager
def policy(tenant: Tenant, group: str, resource: str) -> Iterator[None]:
    """A policy of the tenant's namespace that refuses objects of this resource."""
    name = f"no-{resource}-{tenant.namespace}"
    rule = {"apiGroups": [group], "apiVersions": ["v1"], "resources": [resource], "operations": ["CREATE"]}
    constraints = {
        "resourceRules": [rule],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": tenant.namespace}},
    }
    body = {
        "metadata": {"name": name},
        "spec": {"matchConstraints": constraints, "validations": [{"expression": "false"}]},
    }
    binding = {"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}}
    with created(tenant.plane, POLICIES, body), created(tenant.plane, BINDINGS, binding):
        yield

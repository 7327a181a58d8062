"""Credentials of one API server.

`credentials` reads a `kubeconfig` (and runs its `exec_plugin`) or the pod's service account, makes the TLS context,
keeps what it has read, and renews it. Users of the package need `credentials.Credentials` only.
"""

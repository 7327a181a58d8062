"""Credentials of one API server.

`credential_source` reads a `kubeconfig` (and runs its `exec_plugin`) or the pod's service account, and blocks.
`credentials` keeps what it has read, loads it in a thread, and renews it. `tls` makes the contexts. Users of the
package need `credentials.Credentials` only.
"""

"""One Kubernetes API server: connection, credentials, client, errors, discovery, informer.

The package imports nothing of `gang`.
"""

"""Logs of ranks: copied whole at the end of a gang, streamed while it runs, and written to a storage.

Logs are best effort: the kubelet removes the log of a deleted pod with its containers, also if a finalizer holds the
pod, and serves only the current file of a log that it has rotated. No other function depends on logs.
"""

"""The rows of the tables that `kubectl get` prints."""

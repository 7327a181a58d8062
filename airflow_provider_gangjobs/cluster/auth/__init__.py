"""Credentials of one API server: kubeconfig, service account tokens, exec plugins, TLS."""

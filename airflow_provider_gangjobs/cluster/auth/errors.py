"""Errors of reading credentials, to which `credential_source` adds the connection. No message contains a secret."""

from __future__ import annotations


class ConfigError(Exception):
    """The kubeconfig or service account cannot be used until somebody corrects it."""

    def __init__(self, problem: str, remedy: str) -> None:
        self.problem = problem
        self.remedy = remedy
        super().__init__(problem)


class TokenUnavailableError(Exception):
    """The exec plugin or the token file did not give a token. A later attempt may succeed."""

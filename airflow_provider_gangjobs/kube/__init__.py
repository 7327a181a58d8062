from typing import Final

SANDBOX_SERVER: Final = "gangjobs-sandbox"
"""The header `Server` of the responses of the sandbox. A kube-apiserver sends no such header."""

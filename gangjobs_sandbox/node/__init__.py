"""The node of the sandbox: runs pods as local processes, for the embedded API server and for a real one.

This module imports nothing, because the supervisor of local programs uses parts of the shim and must stay small.
"""

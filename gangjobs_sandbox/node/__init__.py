"""The sandbox's node: pods as local processes, for the embedded API server and for a real one.

Nothing is imported here, because supervisors of local programs use parts of the shim and must stay small.
"""

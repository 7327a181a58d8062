"""The JobSet controller beside a real control plane."""

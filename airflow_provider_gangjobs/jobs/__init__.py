"""The requests about the Jobs of one gang, which submission, tracking and sweeps send."""

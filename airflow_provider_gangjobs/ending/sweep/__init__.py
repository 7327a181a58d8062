"""Sweeps end or release the gangs of a namespace that nobody is responsible for. The rules are `gang.state.ownership`.

`sweep.Sweep` looks at all gangs of a namespace, remembers what it needs until the next look, reads
which gangs other processes follow (`leases`), asks Airflow through a function that it is given, and acts (`actions`).
`sweeper.NamespaceSweeper` repeats this in a triggerer, from the informers of its followers. `sweep.sweep_once`
is the sweep of the command line, without Airflow. A gang that is over is followed to its end by a function that the
caller gives, so that this package need not know how gangs are followed.
"""

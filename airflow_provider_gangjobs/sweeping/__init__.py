"""Sweeping: end or free the gangs of a namespace that nobody is responsible for any more."""

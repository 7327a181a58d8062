"""The Job controller (KEP-2307, pkg/controller/job): pure functions, and one sync that calls them."""

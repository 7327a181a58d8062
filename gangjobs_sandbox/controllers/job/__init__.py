"""The Job controller: KEP-2307 as Kubernetes codes it (pkg/controller/job), in pure parts and one thin sync."""

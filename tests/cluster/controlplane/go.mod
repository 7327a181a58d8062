// Marks the module's root. The module files that are built from are releases/*.mod, one for each Kubernetes release.
module controlplane

go 1.25.0

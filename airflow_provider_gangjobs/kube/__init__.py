"""Rules of Kubernetes objects without gangs: names, resources, quantities, views, and the text of messages."""

"""Rules of Kubernetes objects that are independent of gangs: names, quantities, views, and the text of messages."""

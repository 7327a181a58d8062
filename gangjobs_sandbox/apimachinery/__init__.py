"""Rules of Kubernetes objects, as in `k8s.io/apimachinery`: names, quantities, selectors, and merges.

The modules import nothing else of the sandbox. The provider has its own copy of the few rules that it needs, because
neither distribution requires the other. `tests/unit/test_kubernetes_rules.py` compares the answers of both.
"""

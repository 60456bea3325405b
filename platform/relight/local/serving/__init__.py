"""Knative Serving: revisions, routes, the router and activator, the autoscaler, replicas as processes.

May live here: controllers and the data path. May not: decisions (``decide``), the API's front (``local.kube``).
"""

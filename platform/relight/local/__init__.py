"""Knative on one machine: the Kubernetes API, serving, eventing, and the supervisor that composes them.

May live here: what a Knative cluster would do for us. May not: importing ``runtime``: a function is started as a
process and spoken to over HTTP.
"""

"""Knative Eventing: a durable broker and triggers.

May live here: ingress, the event log, delivery. May not: filters and back-off rules (``decide``).
"""

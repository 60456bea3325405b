"""Deploying: rendering and applying objects through the Kubernetes API of any cluster, local mode included.

May live here: what turns a function's folder into objects and applies them. May not: a special case for local mode.
"""

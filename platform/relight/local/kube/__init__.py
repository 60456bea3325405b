"""The part of the Kubernetes API that Knative users touch: store, kinds, listener.

May live here: objects, versions, watches, patches. May not: what the objects make happen (controllers watch).
"""

"""The ground floor: what could live in any project.

May live here: errors, settings, units, ids, logs, metrics, guarded tasks. May not: anything that knows what a model,
a function or an event is. Imports nothing of relight.
"""

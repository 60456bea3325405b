"""relight: every model and every retrieval step is one Knative function.

Floors, from the ground up; imports go downward only and siblings on one floor do not know each other:

0. ``base``: errors, settings, units, ids, logs, metrics, tasks. Could be a library of its own.
1. ``wire``: codecs, bytes <-> frozen values. ``decide``: pure decisions, (state, observation, now) -> decision.
2. ``store``, ``backends``, ``net``, ``proc``: one seam to the world each.
3. ``runtime``: inside a function's process. ``retrieval``: vector search. ``local``: Knative on one machine.
   ``cluster``: deploying through the Kubernetes API of any cluster. ``warm``: who is kept warm, and when.
4. ``sdk``: the names that functions import. ``cli``: the command line. ``testing``: the kit for users' own tests.
"""

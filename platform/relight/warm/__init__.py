"""The warm policy: calls and starts are observed, plans are made of them (``decide``), and carried out.

Here stands what drives the decisions of ``decide.keepalive`` and ``decide.placement``: sources of observations, the
loop that acts through the Kubernetes API of any cluster (local mode included), traces and the simulator. It knows no
other part of its floor: who composes it with local mode stands above.
"""

"""gunicorn's settings in the image (``--config python:relight.runtime.hosts.image_settings``); names are gunicorn's."""

import os

bind = f"0.0.0.0:{os.environ.get('PORT') or 8080}"
worker_class = "relight.runtime.hosts.gunicorn.Worker"
workers = 1
"""One copy of the model. More copies are more pods, which the autoscaler counts."""
control_socket_disable = True
"""It would be written to the home folder, and the root file system is read-only."""
worker_tmp_dir = "/dev/shm"
"""gunicorn touches a file there every second: in memory, and writable in every container."""
timeout = 0
"""The kubelet's liveness probe watches the worker; gunicorn's own watch would kill a long load that is well."""
graceful_timeout = 3600
"""On SIGTERM all that is in flight is answered. The pod's grace period, the revision's timeout, is shorter."""
accesslog = None
errorlog = "-"
loglevel = os.environ.get("RELIGHT_LOG_LEVEL") or "info"

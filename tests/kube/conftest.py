"""The API server of ``kubekit`` for the tests beside this file."""

from kubekit import anyio_backend, api, kube, kubectl, own, raw, running

__all__ = ["anyio_backend", "api", "kube", "kubectl", "own", "raw", "running"]

"""Codecs: bytes <-> frozen values, for each protocol that relight speaks.

May live here: Open Inference Protocol, OpenAI, CloudEvents, func.yaml and HTTP values. May not: a client, a server, a
clock, a thread, a decision.
"""

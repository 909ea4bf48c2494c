"""Pools that follow their load: what Serve's controller is told, and how it decides.

The replicas say how busy they are (``record_autoscaling_stats`` of both deployments).
"""

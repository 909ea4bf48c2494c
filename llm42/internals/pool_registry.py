"""What the verifiers of a pool have agreed on: a small table in Ray's own control store, where the first write wins.

Relies on Ray 2.60.0: ``ray.experimental.internal_kv`` being connected in every driver and worker, and its client's
``internal_kv_put`` without overwriting being atomic over the cluster.

An entry has some kilobytes, and lives as long as the cluster: older replicas may still be held to theirs while they
drain, and nobody can tell when the last one has gone.
"""

from ray.experimental import internal_kv

NAMESPACE = b"llm42"
CALL_S = 10.0


class NotRegisteredError(RuntimeError):
    """Ray's control store did not keep what it was given."""


def agree(pool: str, value: bytes) -> bytes:
    """What ``pool`` has agreed on: the ``value`` of whoever came first.

    Raises :class:`NotRegisteredError`, or what Ray raises when its control store does not answer.
    """
    client, key = internal_kv.internal_kv_get_gcs_client(), f"pool/{pool}".encode()
    client.internal_kv_put(key, value, False, NAMESPACE, CALL_S)
    agreed: bytes | None = client.internal_kv_get(key, NAMESPACE, CALL_S)
    if agreed is None:
        raise NotRegisteredError(f"Ray's control store has no entry for pool {pool}")
    return agreed
